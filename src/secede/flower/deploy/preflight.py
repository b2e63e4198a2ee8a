"""What is looked at before a run is started: mistakes are told at once, in one line.

What an operator asks for is written into the home, where the app finds it: it takes no line of
code in there.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secede.erasure.storage.home import Home
from secede.erasure.storage.locks import lock_home
from secede.errors import ConfigError
from secede.flower.protocol.nodes import select
from secede.flower.storage.round_log import RoundLog
from secede.flower.storage.training_state import TrainingState

logger = logging.getLogger(__name__)

ROUNDS = 3
_CONFIG = "tool.flwr.app.config"
_KEYS = ("home", "leaver", "trigger", "options")  # of `erasure` in an app's config


@dataclass(frozen=True)
class PlannedTraining:
    """A training that can be started: how many rounds, and where it begins."""

    rounds: int
    words: str


def plan_training(
    folder: Path, rounds: int | None, *, from_scratch: bool, go_on: bool = False
) -> PlannedTraining:
    """Return what a training of so many rounds will be; None: as one that was cut short, else 3.

    `go_on` takes back a wish for one from scratch.
    """
    trainings = TrainingState(folder)
    if go_on:
        with lock_home(Home(folder), 90, purpose="taking back a training from scratch"):
            if trainings.go_on():
                logger.info("the training from scratch that was asked for is taken back")
    if not from_scratch:
        length = rounds or trainings.planned_rounds() or ROUNDS
        return PlannedTraining(length, trainings.plan_start(length).words)
    length = rounds or ROUNDS
    found = trainings.plan_start(length, from_scratch=True)
    if RoundLog(folder / "rounds.jsonl").last() is not None:
        with lock_home(Home(folder), 90, purpose="asking for a training from scratch"):
            trainings.request_from_scratch(length)
    return PlannedTraining(length, found.words)


def check_config(app: Path, wanted: Mapping[str, object]) -> None:
    """Raise if an app's config lacks what a run sets: Flower refuses keys that are not there.

    Apps that an older version wrote lack some; it is for their owner to add them.
    """
    path = app / "pyproject.toml"
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for key in _CONFIG.split("."):
        found = found.get(key, {})
        if not isinstance(found, dict):
            raise ConfigError(f"{path}: {key} is {_kind(found)}, expected a table [{_CONFIG}]")
    erasure = _table(path, found)
    flat = {**found, **{f"erasure.{key}": value for key, value in erasure.items()}}
    missing = [key for key in wanted if key not in flat]
    if not missing:
        return
    table = {**dict.fromkeys(_KEYS, ""), "home": "home", **erasure}
    lines = [f"{key} = {_written(wanted[key])}" for key in missing if "." not in key]
    lines += [f"erasure = {_written(table)}"] if any("." in key for key in missing) else []
    written = "\n".join(f"    {line}" for line in lines)
    raise ConfigError(
        f"{path} has no {', '.join(missing)} under [{_CONFIG}], as apps of an older "
        "version have none, and Flower sets no key that is not there. Write there, in place of "
        f"what it has of them:\n{written}\nand see that the server app has, in place of its own "
        "call of erase():\n    if erase_if_asked(grid, strategy, store, context):\n        return"
    )


def _table(path: Path, found: Mapping[str, object]) -> dict[str, object]:
    """Return what is there of `erasure`; raise at what Flower takes in no config."""
    table = found.get("erasure", {})
    if not isinstance(table, dict):
        return {}
    for key, value in table.items():
        if not isinstance(value, str | int | float | dict):
            raise ConfigError(
                f"{path}: erasure.{key} under [{_CONFIG}] is {_kind(value)}, expected text, a "
                "number, true or false: write it in quotes"
            )
    return dict(table)


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"


def _written(value: object) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_written(each)}' for key, each in value.items())} }}"
    return repr(value) if isinstance(value, float) else json.dumps(value, default=str)


def check_leaver(folder: Path, leaver: str) -> None:
    """Raise if there is nothing to erase from, or `leaver` is not one client of it."""
    log = RoundLog(folder / "rounds.jsonl")
    if log.last() is None:
        raise ConfigError(
            f"{folder} holds no completed round, there is nothing to erase from: secede flower "
            f"train {folder.parent} first"
        )
    select(leaver, log.clients())


def prepare_erasure(folder: Path, leaver: str, *, as_it_is: bool) -> None:
    """Raise if `leaver` cannot be erased by a run; `as_it_is` takes a training that was cut.

    That is written down: whatever else may be wrong is to be looked at before.
    """
    check_leaver(folder, leaver)
    trainings = TrainingState(folder)
    cut = trainings.unfinished()
    if cut is not None and as_it_is:
        known, done = cut
        logger.info(
            f"the training that was cut short is taken as it is, {done} of {known.rounds} rounds"
        )
        with lock_home(Home(folder), 90, purpose="taking a training as it is"):
            trainings.take_as_it_is()
    trainings.check_finished()
