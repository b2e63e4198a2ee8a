"""What is looked at before a run is started: mistakes are told at once, in one line.

What an operator asks for is written into the home, where the app finds it: it takes no line of
code in there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from secede.erasure.home import Home
from secede.errors import ConfigError
from secede.flower import holding
from secede.flower.log import Log
from secede.flower.nodes import select
from secede.flower.trainings import Trainings

Tell = Callable[[str], None]
ROUNDS = 3


@dataclass(frozen=True)
class Asked:
    """A training that can be started: how many rounds, and where it begins."""

    rounds: int
    words: str


def training(folder: Path, rounds: int | None, *, from_scratch: bool, tell: Tell) -> Asked:
    """Return what a training of so many rounds will be; None: as one that was cut short, else 3."""
    trainings = Trainings(folder)
    if not from_scratch:
        length = rounds or trainings.length() or ROUNDS
        return Asked(length, trainings.foresee(length).words)
    length = rounds or ROUNDS
    found = trainings.foresee(length, from_scratch=True)
    if Log(folder / "rounds.jsonl").last() is not None:
        with holding.held(Home(folder), tell, doing="asking for a training from scratch"):
            trainings.ask_anew(length)
    return Asked(length, found.words)


def erasure(folder: Path, leaver: str, *, as_it_is: bool, tell: Tell) -> None:
    """Raise if `leaver` cannot be erased by a run; `as_it_is` takes a training that was cut."""
    log, trainings = Log(folder / "rounds.jsonl"), Trainings(folder)
    if log.last() is None:
        raise ConfigError(
            f"{folder} holds no completed round, there is nothing to erase from: secede flower "
            f"train {folder.parent} first"
        )
    select(leaver, log.clients())
    cut = trainings.cut()
    if cut is not None and as_it_is:
        known, done = cut
        tell(f"the training that was cut short is taken as it is, {done} of {known.rounds} rounds")
        with holding.held(Home(folder), tell, doing="taking a training as it is"):
            trainings.take_as_it_is()
    trainings.check_finished()
