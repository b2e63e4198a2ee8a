from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from flwr.app import ArrayRecord

from harness.flower.dying import dying
from harness.flower.journals import home
from harness.flower.small import Federation, initial
from harness.lines import Lines
from secede.errors import ConfigError
from secede.flower.deploy import preflight
from secede.flower.deploy.scaffold import write_project
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
    first = preflight.plan_training(folder, None, from_scratch=False)
    assert (first.rounds, first.description[:28]) == (3, "training begins from fresh w")
    federation.train(2)
    second = preflight.plan_training(folder, 5, from_scratch=False)
    assert second.rounds == 5
    assert "goes on from the serving model" in second.description


def test_one_that_was_cut_short_goes_on_with_its_own_length(federation: Federation) -> None:
    folder = cut(federation)
    asked = preflight.plan_training(folder, None, from_scratch=False)
    assert (asked.rounds, asked.description) == (4, "training goes on after round 2 of 4")
    with pytest.raises(ConfigError, match=r"this one has 1: .*--rounds 4.*--from-scratch"):
        preflight.plan_training(folder, 1, from_scratch=False)


def test_from_scratch_is_written_down_for_the_app(federation: Federation) -> None:
    asked = preflight.plan_training(home(federation), 2, from_scratch=True)
    assert "the first of this home" in asked.description
    assert not (home(federation) / "training.json").exists()
    cut(federation)
    asked = preflight.plan_training(home(federation), 2, from_scratch=True)
    assert asked.description.startswith("FROM SCRATCH")
    federation.recording().start(federation.grid(), ArrayRecord(initial()), num_rounds=2, timeout=5)
    assert [r.training for r in federation.store.log.lineage()] == [1, 1]


def test_before_any_training_there_is_nothing_to_erase(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no completed round.*secede flower train .*north first"):
        preflight.prepare_erasure(tmp_path / "north" / "home", "name:a", accept_unfinished=False)


def test_an_unknown_client_is_told_at_once(federation: Federation) -> None:
    federation.train(1)
    preflight.prepare_erasure(home(federation), "name:site-1", accept_unfinished=False)
    for leaver in ("name:site-9", "site-1"):
        with pytest.raises(ConfigError, match="expected"):
            preflight.prepare_erasure(home(federation), leaver, accept_unfinished=False)


def test_a_training_that_was_cut_is_taken_as_it_is_when_asked(federation: Federation) -> None:
    folder, told = cut(federation), Lines()
    with pytest.raises(ConfigError, match="cut short after round 2"):
        preflight.prepare_erasure(folder, "name:site-1", accept_unfinished=False)
    preflight.prepare_erasure(folder, "name:site-1", accept_unfinished=True)
    assert told == ["the training that was cut short is taken as it is, 2 of 4 rounds"]
    assert TrainingState(folder).unfinished() is None
    preflight.prepare_erasure(folder, "name:site-1", accept_unfinished=True)
    assert len(told) == 1


def wish(federation: Federation) -> None:
    preflight.plan_training(home(federation), 2, from_scratch=True)


@pytest.mark.parametrize("times", [1, 2])
def test_a_training_from_scratch_can_be_taken_back(federation: Federation, times: int) -> None:
    federation.train(2)
    for _ in range(times):
        wish(federation)
    waiting = preflight.plan_training(home(federation), 2, from_scratch=False)
    assert waiting.description.startswith("FROM SCRATCH")
    assert "--resume" in waiting.description
    told = Lines()
    asked = preflight.plan_training(home(federation), 2, from_scratch=False, resume=True)
    assert "goes on from the serving model" in asked.description
    assert told.has("is taken back")
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
    asked = preflight.plan_training(home(federation), None, from_scratch=False)
    assert asked.description == "training goes on after round 2 of 4"


def test_a_training_from_scratch_that_has_a_round_is_not_taken_back(
    federation: Federation,
) -> None:
    federation.train(1)
    wish(federation)
    federation.recording().start(federation.grid(), ArrayRecord(initial()), num_rounds=2, timeout=5)
    replaced = federation.store.last_round()
    told = Lines()
    preflight.plan_training(home(federation), 2, from_scratch=False, resume=True)
    assert not told.has("is taken back")
    assert federation.store.last_round() == replaced


# The app's config

OLDER = """\
[tool.flwr.app.config]
num-server-rounds = 10
erasure = { home = "there", leaver = "" }
"""
ERASE = {"erasure.home": "h", "erasure.leaver": "name:a", "erasure.trigger": "other"}


def test_an_app_of_an_older_version_is_told_what_to_add(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(OLDER)
    preflight.check_config(tmp_path, {"num-server-rounds": 3, "erasure.home": "h"})
    with pytest.raises(
        ConfigError, match=r"has no erasure.trigger, erasure.options under"
    ) as found:
        preflight.check_config(tmp_path, {**ERASE, "erasure.options": "{}"})
    line = 'erasure = { home = "there", leaver = "", trigger = "", options = "" }'
    assert f"    {line}\n" in str(found.value)
    assert "if erase_if_asked(grid, strategy, store, context):" in str(found.value)
    assert path.read_text() == OLDER  # it is for its owner to add them
    old = 'erasure = { home = "there", leaver = "" }'
    path.write_text(OLDER.replace(old, line))
    preflight.check_config(tmp_path, {**ERASE, "erasure.options": "{}"})


def test_every_key_that_is_missing_is_told_as_it_is_to_be_written(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"has no num-server-rounds, erasure.home") as found:
        preflight.check_config(tmp_path, {"num-server-rounds": 3, "erasure.home": ""})
    written = [line for line in str(found.value).splitlines() if " = " in line]
    path.write_text("\n".join(["[tool.flwr.app.config]", *written]))
    preflight.check_config(tmp_path, {"num-server-rounds": 3, "erasure.home": "", **ERASE})
    path.write_text("[")
    with pytest.raises(ConfigError, match=r"pyproject.toml cannot be read"):
        preflight.check_config(tmp_path, {})


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("tool = 3", r"pyproject.toml: tool is of type int, expected a table \[tool.flwr"),
        ("[tool]\nflwr = 'x'", "flwr is of type str"),
        ("[[tool.flwr.app.config]]", "config is of type list"),
        ("[tool.flwr.app.config.erasure]\nhome = 2026-11-16", "erasure.home .* is of type date,"),
        ("[tool.flwr.app.config.erasure]\nhome = ['x']", "erasure.home .* expected text"),
    ],
)
def test_what_is_no_config_is_told_and_where(tmp_path: Path, written: str, words: str) -> None:
    (tmp_path / "pyproject.toml").write_text(written)
    with pytest.raises(ConfigError, match=words):
        preflight.check_config(tmp_path, ERASE)


def test_what_an_app_has_of_its_own_is_told_as_toml(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    mine = 'erasure = { own = { a = 1, b = true }, rate = inf, day = "2026-11-16" }'
    path.write_text(f"[tool.flwr.app.config]\n{mine}\n")
    with pytest.raises(ConfigError, match=r"has no erasure.home") as found:
        preflight.check_config(tmp_path, ERASE)
    (line,) = [line for line in str(found.value).splitlines() if " = " in line]
    path.write_text(f"[tool.flwr.app.config]\n{line}\n")
    preflight.check_config(tmp_path, ERASE)
    before, after = (tomllib.loads(text)["erasure"] for text in (mine, line))
    assert before.items() <= after.items()


def test_a_fresh_project_lacks_nothing(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", sites=["a", "b"])
    every = {**ERASE, "erasure.options": "{}", "num-server-rounds": 3}
    preflight.check_config(project.app, every)
