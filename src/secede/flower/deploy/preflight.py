"""Checks before a run is started, so that mistakes end a command at once, with one line.

What an operator asks for is written into the home. The app finds it there without further code.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secede.erasure import Home, lock_home
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
    description: str


def plan_training(
    folder: Path, rounds: int | None, *, from_scratch: bool, resume: bool = False
) -> PlannedTraining:
    """Return the training that a run will do.

    Without `rounds` it has as many as the one that was cut short, else 3. `resume` cancels a
    requested training from scratch.
    """
    trainings = TrainingState(folder)
    if resume:
        with lock_home(Home(folder), 90, purpose="cancelling a training from scratch"):
            if trainings.cancel_from_scratch():
                logger.info("the requested training from scratch is cancelled")
    if not from_scratch:
        length = rounds or trainings.planned_rounds() or ROUNDS
        return PlannedTraining(length, trainings.plan_start(length).description)
    length = rounds or ROUNDS
    start = trainings.plan_start(length, from_scratch=True)
    if RoundLog(folder / "rounds.jsonl").last() is not None:
        with lock_home(Home(folder), 90, purpose="requesting a training from scratch"):
            trainings.request_from_scratch(length)
    return PlannedTraining(length, start.description)


def check_config(app: Path, wanted: Mapping[str, object]) -> None:
    """Raise if an app's config lacks a key that a run sets: Flower refuses unknown keys."""
    path = app / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for key in _CONFIG.split("."):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {key} is {_type(table)}, expected a table [{_CONFIG}]")
    erasure = _erasure_table(path, table)
    flat = {**table, **{f"erasure.{key}": value for key, value in erasure.items()}}
    missing = [key for key in wanted if key not in flat]
    if not missing:
        return
    complete = {**dict.fromkeys(_KEYS, ""), "home": "home", **erasure}
    lines = [f"{key} = {_to_toml(wanted[key])}" for key in missing if "." not in key]
    lines += [f"erasure = {_to_toml(complete)}"] if any("." in key for key in missing) else []
    indented = "\n".join(f"    {line}" for line in lines)
    raise ConfigError(
        f"{path} has no {', '.join(missing)} under [{_CONFIG}], and Flower sets no key that an "
        f"app's config lacks. Write there, in place of what it has of them:\n{indented}\nand check "
        "that the server app has, in place of its own call of erase():\n"
        "    if erase_if_asked(grid, strategy, store, context):\n        return"
    )


def _erasure_table(path: Path, config: Mapping[str, object]) -> dict[str, object]:
    """Return the `erasure` table of an app's config; raise at a value that Flower cannot take."""
    table = config.get("erasure", {})
    if not isinstance(table, dict):
        return {}
    for key, value in table.items():
        if not isinstance(value, str | int | float | dict):
            raise ConfigError(
                f"{path}: erasure.{key} under [{_CONFIG}] is {_type(value)}, expected text, a "
                "number, true or false: write it in quotes"
            )
    return dict(table)


def _type(value: object) -> str:
    return f"of type {type(value).__name__}"


def _to_toml(value: object) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_to_toml(each)}' for key, each in value.items())} }}"
    return repr(value) if isinstance(value, float) else json.dumps(value, default=str)


def check_leaver(folder: Path, leaver: str) -> None:
    """Raise if nothing was trained yet, or if `leaver` does not select exactly one client."""
    log = RoundLog(folder / "rounds.jsonl")
    if log.last() is None:
        raise ConfigError(
            f"{folder} holds no completed round, there is nothing to erase from: secede flower "
            f"train {folder.parent} first"
        )
    select(leaver, log.clients())


def prepare_erasure(folder: Path, leaver: str, *, accept_unfinished: bool) -> None:
    """Raise if no run can erase `leaver`; `accept_unfinished` accepts one that was cut short.

    The acceptance is written to the home, so make all other checks before.
    """
    check_leaver(folder, leaver)
    trainings = TrainingState(folder)
    unfinished = trainings.unfinished()
    if unfinished is not None and accept_unfinished:
        training, done = unfinished
        logger.info(
            "the training that was cut short is accepted as it is, "
            f"{done} of {training.rounds} rounds"
        )
        with lock_home(Home(folder), 90, purpose="accepting an unfinished training"):
            trainings.accept_unfinished()
    trainings.check_finished()
