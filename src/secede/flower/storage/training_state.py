"""The training in progress in a home, and where the next one begins: training.json.

A training goes on from the last model unless it begins from scratch. One that was cut short must be
finished by starting it again, or its model explicitly taken as it is, before that model may serve.
Nothing here imports flwr or torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from secede.erasure import Count, Document, load_document, save_document
from secede.errors import ConfigError
from secede.flower.storage.round_log import Round, RoundLog
from secede.text import plural, short_digest

_MAX_BYTES = 1 << 20


class Training(Document):
    """The training in progress, or the last one."""

    number: Count
    rounds: Count
    finished: bool = False
    fresh: bool = False  # an operator asked for it to begin from scratch
    unfinished: Training | None = None  # the one before it, if that was cut short


@dataclass(frozen=True)
class StartPoint:
    """Where a training begins: after how many of its rounds, and with which model."""

    done: int = 0
    model: str | None = None  # its digest; None: the weights that the training is started with
    description: str = ""


class TrainingState:
    """A home's trainings: the file training.json, and the log of their rounds."""

    def __init__(self, home: Path) -> None:
        self._path, self._log = home / "training.json", RoundLog(home / "rounds.jsonl")

    def last(self) -> Training | None:
        """Return the training in progress, or the last one."""
        if not self._path.exists():
            return None
        return load_document(Training, self._path, _MAX_BYTES)

    def unfinished(self) -> tuple[Training, int] | None:
        """Return the training that made the last model and was cut short, and its rounds so far."""
        last = self.last()
        if last is None:
            return None
        rounds = self._log.rounds()
        for training in (last, last.unfinished):
            if training is None:
                continue
            done = [r for r in rounds if r.training == training.number and not r.erased]
            if done:
                # A round without an update counts, too: clients see no number twice.
                numbers = (r.server_round or place for place, r in enumerate(done, start=1))
                return None if training.finished else (training, max(numbers))
        return None

    def planned_rounds(self) -> int | None:
        """Return the length of the training that must be started again; None if there is none."""
        last, unfinished = self.last(), self.unfinished()
        if last is not None and self._from_scratch_pending():
            return last.rounds
        return unfinished[0].rounds if unfinished else None

    def check_finished(self) -> None:
        """Raise if a training that was cut short made the last model."""
        if unfinished := self.unfinished():
            training, done = unfinished
            raise ConfigError(
                f"a training of {training.rounds} rounds was cut short after round {done}: start "
                "it again to finish it (secede flower train), or accept its model as it is (secede "
                "flower erase --accept-unfinished, in an app store.accept_unfinished())"
            )

    def plan_start(
        self, rounds: int, *, given: str | None = None, from_scratch: bool = False
    ) -> StartPoint:
        """Return where a training of so many rounds would begin.

        `given` is the digest of the weights that it is started with. It begins with them if they
        are a model of the log, or from scratch.
        """
        last, unfinished = self._log.last(), self.unfinished()
        if last is None:
            return StartPoint(
                description="training begins from fresh weights, the first of this home"
            )
        if from_scratch or self._from_scratch_pending():
            if given is not None and self._log.has_model(given):
                raise ConfigError(
                    "a training from scratch was requested, but it is started with model "
                    f"{short_digest(given)} of an earlier training: give it fresh weights"
                )
            cancel = "; --resume, in an app store.cancel_from_scratch(), cancels that"
            return StartPoint(
                description="FROM SCRATCH: training begins from fresh weights and replaces model "
                f"{short_digest(last.model)}{'' if from_scratch else cancel}"
            )
        if unfinished is not None:
            return self._resume(*unfinished, last, rounds)
        if given is not None and given != last.model and self._log.has_model(given):
            return StartPoint(
                description=f"training begins from model {short_digest(given)}, which it is given"
            )
        return StartPoint(
            model=last.model,
            description=f"training goes on from the serving model {short_digest(last.model)}, the "
            f"result of {_summary(self._log.lineage())}; --from-scratch, in an app "
            "recording(from_scratch=True), begins anew",
        )

    def start(
        self, rounds: int, *, given: str | None = None, from_scratch: bool = False
    ) -> StartPoint:
        """Record that a training of so many rounds begins, and return where."""
        start = self.plan_start(rounds, given=given, from_scratch=from_scratch)
        last, unfinished = self._last_and_unfinished()
        if start.done and unfinished is not None:  # it goes on under its own number
            self.write(unfinished)
            return start
        fresh = self._from_scratch_pending()
        number = 0 if last is None else last.number + (not fresh)
        self.write(Training(number=number, rounds=rounds, fresh=fresh, unfinished=unfinished))
        return start

    def request_from_scratch(self, rounds: int) -> None:
        """Record that the next training begins from scratch, whoever starts it."""
        last, unfinished = self._last_and_unfinished()
        number = 0 if last is None else last.number + 1
        self.write(Training(number=number, rounds=rounds, fresh=True, unfinished=unfinished))

    def cancel_from_scratch(self) -> bool:
        """Cancel a requested training from scratch; return whether there was one.

        Once that has a round it is too late: its model has replaced the other.
        """
        last = self.last()
        if last is None or not self._from_scratch_pending():
            return False
        # The training that it would have replaced was cut short, or had ended.
        before = last.model_copy(update={"fresh": False, "finished": True})
        self.write(last.unfinished or before)
        return True

    def finish(self) -> None:
        """Record that the training has ended."""
        if (last := self.last()) is not None:
            self.write(last.model_copy(update={"finished": True}))

    def accept_unfinished(self) -> None:
        """Record that the model of the training that was cut short may serve."""
        last, unfinished = self._last_and_unfinished()
        if last is not None and unfinished is not None:
            is_last = unfinished.number == last.number
            change = {"finished": True} if is_last else {"unfinished": None}
            self.write(last.model_copy(update=change))

    def write(self, training: Training) -> None:
        """Write training.json."""
        save_document(self._path, training)

    def _from_scratch_pending(self) -> bool:
        """Return whether a training from scratch was requested and has no round yet."""
        last = self.last()
        if last is None or not last.fresh or last.finished:
            return False
        return all(completed.training != last.number for completed in self._log.rounds())

    def _last_and_unfinished(self) -> tuple[Training | None, Training | None]:
        """Return the last training, and the one that was cut short."""
        unfinished = self.unfinished()
        if unfinished is None:
            return self.last(), None
        return self.last(), unfinished[0].model_copy(update={"unfinished": None})

    def _resume(self, training: Training, done: int, last: Round, rounds: int) -> StartPoint:
        """Return where a training that was cut short goes on; another length is refused."""
        length = training.rounds
        if length != rounds:
            raise ConfigError(
                f"a training of {length} rounds was cut short after round {done}, this one has "
                f"{rounds}: start it with {length} rounds to go on (--rounds {length}), or begin "
                "anew (--from-scratch, in an app recording(from_scratch=True))"
            )
        return StartPoint(done, last.model, f"training goes on after round {done} of {rounds}")


def _summary(rounds: Sequence[Round]) -> str:
    erased = [completed.erased for completed in rounds if completed.erased]
    trained = f"{plural(len(rounds) - len(erased), 'round')} of training"
    return f"{trained} and the erasure of {', '.join(erased)}" if erased else trained
