"""Which training is under way in a home, and where the next one begins: training.json.

A training goes on from the last model unless it is begun from scratch. One that was cut short is
finished first, by starting it again, or taken as it is, by an explicit word: its model serves in no
other way. Nothing here imports flwr or torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from secede.erasure.storage.json_files import load_document, save_document
from secede.erasure.types import Count, Document
from secede.errors import ConfigError
from secede.flower.storage.round_log import Round, RoundLog
from secede.text import plural, short_digest

_MAX_BYTES = 1 << 20


_MAX_BYTES = 1 << 20


class Training(Document):
    """A training that is under way, or was the last."""

    number: Count
    rounds: Count
    finished: bool = False
    fresh: bool = False  # it was asked for from scratch, whatever model there is
    left: Training | None = None  # the one before it, where that was cut short: its model is last


@dataclass(frozen=True)
class StartPoint:
    """Where a training begins: after how many of its rounds, and with which model."""

    done: int = 0
    model: str | None = None  # None: with the weights that it is given
    words: str = ""


class TrainingState:
    """A home's trainings: the file, and the log of their rounds."""

    def __init__(self, home: Path) -> None:
        self._path, self._log = home / "training.json", RoundLog(home / "rounds.jsonl")

    def last(self) -> Training | None:
        """Return the training that is under way, or was the last."""
        if not self._path.exists():
            return None
        return load_document(Training, self._path, _MAX_BYTES)

    def cut(self) -> tuple[Training, int] | None:
        """Return the training whose model is the last and that was cut short, and its rounds."""
        known = self.last()
        if known is None:
            return None
        rounds = self._log.rounds()
        for each in (known, known.left):
            done = [r for r in rounds if each and r.training == each.number and not r.erased]
            if each is not None and done:
                # A round without an update is over, too: no number is told twice.
                numbers = (r.server_round or place for place, r in enumerate(done, start=1))
                return None if each.finished else (each, max(numbers))
        return None

    def length(self) -> int | None:
        """Return how many rounds were meant for the training that is to be started again."""
        known, cut = self.last(), self.cut()
        if known is not None and self._waits():
            return known.rounds
        return cut[0].rounds if cut else None

    def check_finished(self) -> None:
        """Raise if the last model is that of a training which was cut short."""
        if found := self.cut():
            known, done = found
            raise ConfigError(
                f"a training of {known.rounds} rounds was cut short after round {done}: start it "
                "again to finish it (secede flower train), or say that its model is to be taken as "
                "it is (secede flower erase --accept-unfinished, in an app store.take_as_it_is())"
            )

    def foresee(
        self, rounds: int, *, given: str | None = None, from_scratch: bool = False
    ) -> StartPoint:
        """Return where a training of so many rounds would begin.

        `given` is the digest of the weights that it is started with; a model of the log among them
        is where it begins, others are what it begins with from scratch.
        """
        last, cut = self._log.last(), self.cut()
        if last is None:
            return StartPoint(words="training begins from fresh weights, the first of this home")
        if from_scratch or self._waits():
            if given is not None and self._log.has_model(given):
                raise ConfigError(
                    f"a training from scratch was asked for, and it is started with model "
                    f"{short_digest(given)} of an earlier one: give it fresh weights"
                )
            back = "" if from_scratch else "; --resume, in an app store.go_on(), takes that back"
            return StartPoint(
                words="FROM SCRATCH: training begins from fresh weights and takes nothing of model "
                f"{short_digest(last.model)}, which it replaces{back}"
            )
        if cut is not None:
            return self._again(*cut, last, rounds)
        if given is not None and given != last.model and self._log.has_model(given):
            return StartPoint(
                words=f"training begins from model {short_digest(given)}, as it was told to"
            )
        made = self._log.lineage()
        return StartPoint(
            model=last.model,
            words=f"training goes on from the serving model {short_digest(last.model)}, which "
            f"{_count(made)} made; --from-scratch, in an app recording(from_scratch=True), begins "
            "anew",
        )

    def begin(
        self, rounds: int, *, given: str | None = None, from_scratch: bool = False
    ) -> StartPoint:
        """Write down that a training of so many rounds begins, and return where."""
        found = self.foresee(rounds, given=given, from_scratch=from_scratch)
        known, cut = self._now()
        if found.done and cut is not None:  # it goes on as it was written down
            self.write(cut)
            return found
        fresh = self._waits()
        number = 0 if known is None else known.number + (not fresh)
        self.write(Training(number=number, rounds=rounds, fresh=fresh, left=cut))
        return found

    def ask_anew(self, rounds: int) -> None:
        """Write down that the next training begins from scratch, whoever starts it."""
        known, cut = self._now()
        number = 0 if known is None else known.number + 1
        self.write(Training(number=number, rounds=rounds, fresh=True, left=cut))

    def go_on(self) -> bool:
        """Take back that the next training begins from scratch; return whether anybody wished it.

        Once it has a round it is too late: its model has replaced the other.
        """
        known = self.last()
        if known is None or not self._waits():
            return False
        # What it would have replaced was cut short, or had come to its end.
        before = known.model_copy(update={"fresh": False, "finished": True})
        self.write(known.left or before)
        return True

    def finish(self) -> None:
        """Write down that the training has come to its end."""
        if (known := self.last()) is not None:
            self.write(known.model_copy(update={"finished": True}))

    def take_as_it_is(self) -> None:
        """Write down that the model of the training that was cut short may serve."""
        known, cut = self._now()
        if known is not None and cut is not None:
            whole = {"finished": True} if cut.number == known.number else {"left": None}
            self.write(known.model_copy(update=whole))

    def write(self, training: Training) -> None:
        """Write a training down."""
        save_document(self._path, training)

    def _waits(self) -> bool:
        """Return whether one was asked for from scratch that has no round yet."""
        known = self.last()
        if known is None or not known.fresh or known.finished:
            return False
        return all(each.training != known.number for each in self._log.rounds())

    def _now(self) -> tuple[Training | None, Training | None]:
        """Return the last training, and the one that was cut short."""
        cut = self.cut()
        return self.last(), None if cut is None else cut[0].model_copy(update={"left": None})

    def _again(self, known: Training, done: int, last: Round, rounds: int) -> StartPoint:
        """Go on with a training that was cut short; one of another length is not that training."""
        if known.rounds != rounds:
            raise ConfigError(
                f"a training of {known.rounds} rounds was cut short after round {done}, this one "
                f"has {rounds}: start it with {known.rounds} to go on (--rounds {known.rounds}), "
                "or begin anew (--from-scratch, in an app recording(from_scratch=True))"
            )
        words = f"training goes on after round {done} of {rounds}"
        return StartPoint(done, last.model, words)


def _count(made: Sequence[Round]) -> str:
    trained, erased = sum(not r.erased for r in made), [r.erased for r in made if r.erased]
    words = f"{plural(trained, 'round')} of training"
    return f"{words} and the erasure of {', '.join(map(str, erased))}" if erased else words
