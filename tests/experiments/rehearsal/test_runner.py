from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import rehearsals
from harness.audits import Events
from secede.audit import Reading
from secede.errors import ConfigError, StateError
from secede.experiments import Config
from secede.experiments.arms import create_method
from secede.experiments.ensembles import erase
from secede.experiments.rehearsal import Measured, Scores, choose, runner


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measured, Events]:
    folder, events = tmp_path_factory.mktemp("rehearsed"), Events()
    return rehearsals.measured(rehearsals.twin(folder), folder, 2, events), events


def timeless(scores: Scores) -> Scores:
    return replace(scores, seconds=0.0)


def test_the_model_before_tells_the_canaries_and_a_retrained_one_does_not(
    rehearsed: tuple[Measured, Events],
) -> None:
    found = rehearsed[0]
    assert found.before.canaries.p_value < 1e-4
    assert found.retrained.canaries.p_value > 0.01
    assert found.again.canaries.p_value > 0.01
    assert found.retrained != found.again
    assert list(found.candidates) == list(rehearsals.METHODS)
    assert all(scores.canaries.count == 40 for scores in found.candidates.values())
    assert found.before.leaver_loss < found.retrained.leaver_loss
    assert found.loss_spread > 0
    assert choose(found).method in rehearsals.METHODS


def test_uploads_are_those_of_rounds_and_steps(rehearsed: tuple[Measured, Events]) -> None:
    found = rehearsed[0]
    state = found.before.upload_bytes / (8 * 3)  # rounds, clients
    assert found.retrained.upload_bytes == 8 * 2 * state
    assert found.candidates["weight-negation"].upload_bytes == 2 * 2 * state
    assert found.candidates["second-choice"].upload_bytes >= 2 * 2 * state + state


def test_progress_is_reported_round_by_round(rehearsed: tuple[Measured, Events]) -> None:
    events = rehearsed[1]
    assert (events.expected, events.begun, events.ended) == ((2, 0, 1), [0, 1], 2)
    assert len(events.rounds) == 2 * events.announced == 2 * (3 * 8 + 2 + 2)


def test_the_same_twin_gives_the_same_scores(tmp_path: Path) -> None:
    twin = rehearsals.twin(tmp_path, methods=("second-choice",))
    first, second = (rehearsals.measured(twin, tmp_path) for _ in range(2))
    assert timeless(first.before) == timeless(second.before)
    assert timeless(first.candidates["second-choice"]) == timeless(
        second.candidates["second-choice"]
    )


def test_other_candidates_change_nothing(
    rehearsed: tuple[Measured, Events], tmp_path: Path
) -> None:
    twin = rehearsals.twin(tmp_path, methods=("second-choice",))
    alone = rehearsals.measured(twin, tmp_path, 2)
    assert timeless(alone.candidates["second-choice"]) == timeless(
        rehearsed[0].candidates["second-choice"]
    )


def test_a_method_that_breaks_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(config: Config, *rest: object, **others: object) -> object:
        if config.methods[0] == "weight-negation":
            raise StateError("it diverged")
        return erase(config, *rest, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "erase", broken)
    found = rehearsals.measured(rehearsals.twin(tmp_path), tmp_path, 2)
    assert list(found.candidates) == ["second-choice"]
    assert found.failed == {"weight-negation": "it diverged"}


def test_a_method_that_does_not_fit_the_model_is_left_out_unless_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = rehearsals.twin(tmp_path)

    def fussy(config: Config, name: str, *rest: object, **others: object) -> object:
        if name == "weight-negation":
            raise ConfigError("no convolutions")
        return create_method(config, name, *rest, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "create_method", fussy)
    with pytest.raises(ConfigError, match="no convolutions"):
        rehearsals.measured(twin, tmp_path)
    found = rehearsals.measured(replace(twin, named=False), tmp_path)
    assert found.failed == {"weight-negation": "no convolutions"}


def test_a_leaver_without_room_for_canaries_is_refused_before_any_training(tmp_path: Path) -> None:
    text = rehearsals.CONFIG.replace("max_share = 0.5", "max_share = 0.01")
    with pytest.raises(ConfigError, match=r"the leaver's 200 samples are too few: raise canaries"):
        rehearsals.measured(rehearsals.twin(tmp_path, text), tmp_path)


def test_methods_that_need_history_have_it(tmp_path: Path) -> None:
    text = rehearsals.CONFIG + "situation = { history = true, history_interval = 1 }\n"
    twin = rehearsals.twin(tmp_path, text, ("rewind",))
    found = rehearsals.measured(twin, tmp_path)
    assert found.failed == {}
    assert isinstance(found.candidates["rewind"].canaries, Reading)
    assert found.candidates["rewind"].canaries.p_value > 0.01
