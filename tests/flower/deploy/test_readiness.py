from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import ArrayRecord

from flower.journals import home
from flower.small import Federation, Told, initial
from flower.test_store import dying
from secede.errors import ConfigError
from secede.flower.deploy import readiness
from secede.flower.trainings import Trainings


def cut(federation: Federation) -> Path:
    """Train two of four rounds."""
    with pytest.raises(KeyboardInterrupt):
        federation.train(4, grid=dying(federation, 3))
    return home(federation)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def test_a_training_is_told_before_it_starts(federation: Federation) -> None:
    folder, told = home(federation), Told()
    first = readiness.training(folder, None, from_scratch=False, tell=told)
    assert (first.rounds, first.words[:28]) == (3, "training begins from fresh w")
    federation.train(2)
    second = readiness.training(folder, 5, from_scratch=False, tell=told)
    assert second.rounds == 5
    assert "goes on from the serving model" in second.words


def test_one_that_was_cut_short_goes_on_with_its_own_length(federation: Federation) -> None:
    folder = cut(federation)
    asked = readiness.training(folder, None, from_scratch=False, tell=Told())
    assert (asked.rounds, asked.words) == (4, "training goes on after round 2 of 4")
    with pytest.raises(ConfigError, match=r"this one has 1: .*--rounds 4.*--from-scratch"):
        readiness.training(folder, 1, from_scratch=False, tell=Told())


def test_from_scratch_is_written_down_for_the_app(federation: Federation) -> None:
    asked = readiness.training(home(federation), 2, from_scratch=True, tell=Told())
    assert "the first of this home" in asked.words
    assert not (home(federation) / "training.json").exists()
    cut(federation)
    asked = readiness.training(home(federation), 2, from_scratch=True, tell=Told())
    assert asked.words.startswith("FROM SCRATCH")
    federation.recording().start(federation.grid(), ArrayRecord(initial()), num_rounds=2, timeout=5)
    assert [r.training for r in federation.store.log.made()] == [1, 1]


def test_before_any_training_there_is_nothing_to_erase(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no completed round.*secede flower train .*north first"):
        readiness.erasure(tmp_path / "north" / "home", "name:a", as_it_is=False, tell=Told())


def test_an_unknown_client_is_told_at_once(federation: Federation) -> None:
    federation.train(1)
    readiness.erasure(home(federation), "name:site-1", as_it_is=False, tell=Told())
    for leaver in ("name:site-9", "site-1"):
        with pytest.raises(ConfigError, match="expected"):
            readiness.erasure(home(federation), leaver, as_it_is=False, tell=Told())


def test_a_training_that_was_cut_is_taken_as_it_is_when_asked(federation: Federation) -> None:
    folder, told = cut(federation), Told()
    with pytest.raises(ConfigError, match="cut short after round 2"):
        readiness.erasure(folder, "name:site-1", as_it_is=False, tell=told)
    readiness.erasure(folder, "name:site-1", as_it_is=True, tell=told)
    assert told == ["the training that was cut short is taken as it is, 2 of 4 rounds"]
    assert Trainings(folder).cut() is None
    readiness.erasure(folder, "name:site-1", as_it_is=True, tell=told)
    assert len(told) == 1
