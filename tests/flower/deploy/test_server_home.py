from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import ArrayRecord

from harness.flower.dying import dying
from harness.flower.journals import home
from harness.flower.small import Federation, initial
from harness.lines import Lines
from secede.errors import ConfigError
from secede.flower.deploy import server_home
from secede.flower.storage.training_state import TrainingState


def cut(federation: Federation) -> Path:
    """Train two of four rounds."""
    with pytest.raises(KeyboardInterrupt):
        federation.train(4, grid=dying(federation, 3))
    return home(federation)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def test_a_training_is_told_before_it_starts(federation: Federation) -> None:
    folder = home(federation)
    first = server_home.plan_training(folder, None, from_scratch=False)
    assert (first.rounds, first.description[:28]) == (3, "training begins from fresh w")
    federation.train(2)
    second = server_home.plan_training(folder, 5, from_scratch=False)
    assert second.rounds == 5
    assert "goes on from the serving model" in second.description


def test_one_that_was_cut_short_goes_on_with_its_own_length(federation: Federation) -> None:
    folder = cut(federation)
    asked = server_home.plan_training(folder, None, from_scratch=False)
    assert (asked.rounds, asked.description) == (4, "training goes on after round 2 of 4")
    with pytest.raises(ConfigError, match=r"this one has 1: .*--rounds 4.*--from-scratch"):
        server_home.plan_training(folder, 1, from_scratch=False)


def test_from_scratch_is_written_down_for_the_app(federation: Federation) -> None:
    asked = server_home.plan_training(home(federation), 2, from_scratch=True)
    assert "the first of this home" in asked.description
    assert not (home(federation) / "training.json").exists()
    cut(federation)
    asked = server_home.plan_training(home(federation), 2, from_scratch=True)
    assert asked.description.startswith("FROM SCRATCH")
    federation.recording().start(federation.grid(), ArrayRecord(initial()), num_rounds=2, timeout=5)
    assert [r.training for r in federation.store.log.lineage()] == [1, 1]


def test_before_any_training_there_is_nothing_to_erase(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no completed round.*secede flower train .*north first"):
        server_home.prepare_erasure(tmp_path / "north" / "home", "name:a", accept_unfinished=False)


def test_an_unknown_client_is_told_at_once(federation: Federation) -> None:
    federation.train(1)
    server_home.prepare_erasure(home(federation), "name:site-1", accept_unfinished=False)
    for leaver in ("name:site-9", "site-1"):
        with pytest.raises(ConfigError, match="expected"):
            server_home.prepare_erasure(home(federation), leaver, accept_unfinished=False)


def test_a_training_that_was_cut_is_taken_as_it_is_when_asked(federation: Federation) -> None:
    folder, told = cut(federation), Lines()
    with pytest.raises(ConfigError, match="cut short after round 2"):
        server_home.prepare_erasure(folder, "name:site-1", accept_unfinished=False)
    server_home.prepare_erasure(folder, "name:site-1", accept_unfinished=True)
    assert told == ["the training that was cut short is accepted as it is, 2 of 4 rounds"]
    assert TrainingState(folder).unfinished() is None
    server_home.prepare_erasure(folder, "name:site-1", accept_unfinished=True)
    assert len(told) == 1


def wish(federation: Federation) -> None:
    server_home.plan_training(home(federation), 2, from_scratch=True)


@pytest.mark.parametrize("times", [1, 2])
def test_a_training_from_scratch_can_be_taken_back(federation: Federation, times: int) -> None:
    federation.train(2)
    for _ in range(times):
        wish(federation)
    waiting = server_home.plan_training(home(federation), 2, from_scratch=False)
    assert waiting.description.startswith("FROM SCRATCH")
    assert "--resume" in waiting.description
    told = Lines()
    asked = server_home.plan_training(home(federation), 2, from_scratch=False, resume=True)
    assert "goes on from the serving model" in asked.description
    assert told.has("is cancelled")
    before = federation.store.last_round()
    federation.recording().start(federation.grid(), ArrayRecord(initial()), num_rounds=2, timeout=5)
    rounds = federation.store.log.lineage()
    assert len(rounds) == 4
    assert before is not None
    assert rounds[2].start == before.model
    assert not federation.store.cancel_from_scratch()  # nothing is left to take back


def test_what_was_cut_short_before_the_wish_goes_on_where_it_was(federation: Federation) -> None:
    before = TrainingState(cut(federation)).last()
    wish(federation)
    assert federation.store.cancel_from_scratch()
    assert TrainingState(home(federation)).last() == before
    asked = server_home.plan_training(home(federation), None, from_scratch=False)
    assert asked.description == "training goes on after round 2 of 4"


def test_a_training_from_scratch_that_has_a_round_is_not_taken_back(
    federation: Federation,
) -> None:
    federation.train(1)
    wish(federation)
    federation.recording().start(federation.grid(), ArrayRecord(initial()), num_rounds=2, timeout=5)
    replaced = federation.store.last_round()
    told = Lines()
    server_home.plan_training(home(federation), 2, from_scratch=False, resume=True)
    assert not told.has("is cancelled")
    assert federation.store.last_round() == replaced
