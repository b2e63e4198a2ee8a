"""Every question that a client was asked, and what came of it: a log that its owner can read.

`questions.jsonl` lies beside the kept updates. It also bounds the answers: what was answered in the
last thirty days is never dropped from it, of all else the last lines stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from secede import files
from secede.erasure import Document, Timestamp, parse_time, read_bounded, to_canonical
from secede.errors import ConfigError
from secede.flower.client.limits import ClientLimits
from secede.unlearning import client_tasks

_FILE = "questions.jsonl"
_MAX_BYTES = 64 << 20
_MAX_LINES, _KEPT = 4000, 1000  # of what was refused, or is older
_MONTH = timedelta(days=30)

MAX_WORD = 400  # characters of a text in it

Word = Annotated[str, Field(max_length=MAX_WORD)]


class Question(Document):
    """A question, and whether it was answered."""

    at: Timestamp
    home: Word = ""
    request: Word = ""  # digest of the request that it is asked for
    task: Word = ""
    method: Word = ""
    settings: Word = ""  # digest of a step's settings, share, and what seeds it
    model: Word = ""  # digest
    plan: Word = ""  # digest of the plan that a step is of, which the ledger has, too
    outcome: Literal["taken", "refused"] = "taken"
    reason: Word = ""

    @property
    def is_step(self) -> bool:
        """Whether a local step was asked for."""
        return self.task == client_tasks.LOCAL_STEP

    @property
    def is_reading(self) -> bool:
        """Whether a reading of canaries was asked for."""
        return self.task == client_tasks.READ_CANARIES

    def same(self, other: Question) -> bool:
        """Return whether both ask the same, so that the second answer tells nothing new."""
        names = ("home", "request", "task", "method", "settings", "model")
        return all(getattr(self, name) == getattr(other, name) for name in names)


class QuestionLog:
    """The log in a client's folder of kept updates."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.path = folder, folder / _FILE

    def all(self) -> tuple[Question, ...]:
        """Return all questions in the log, the oldest first; a line that a kill cut is left out."""
        if not self.path.exists():
            return ()
        questions = list[Question]()
        for line in read_bounded(self.path, _MAX_BYTES).splitlines():
            with suppress(ValidationError):
                questions.append(Question.model_validate_json(line))
        return tuple(questions)

    def append(self, question: Question, limits: ClientLimits | None = None) -> None:
        """Add a question; with `limits`, raise instead if it is one too many.

        It is there before it is answered, so that neither a kill nor two at once make it free.
        """
        with files.private():
            files.make_folder(self._folder)
            with files.lock(self._folder / ".questions.lock"):
                before = self.all()
                recent = _recent(before, parse_time(question.at))
                if limits is not None:
                    _check(question, recent, limits)
                if len(before) >= _MAX_LINES:
                    kept = [each for each in before[:-_KEPT] if each in recent]
                    lines = [_line(each) for each in (*kept, *before[-_KEPT:])]
                    files.write_text(self.path, "".join(f"{line}\n" for line in lines))
                files.append_line(self.path, _line(question))


def _check(question: Question, recent: Sequence[Question], limits: ClientLimits) -> None:
    """Raise if a question is one too many; one that was answered may be answered again."""
    if any(each.same(question) for each in recent):
        return
    of_request = [
        each
        for each in recent
        if each.request == question.request
        and (each.is_step, each.is_reading) == (question.is_step, question.is_reading)
    ]
    limit = limits.readings if question.is_reading else limits.questions
    limit = limits.steps if question.is_step else limit
    steps = [each for each in recent if each.is_step and question.is_step]
    for taken, most, of in (
        (of_request, limit, "for this request"),
        (steps, limits.monthly_steps, "with steps in thirty days"),
        (recent, limits.monthly, "in thirty days"),
    ):
        if len(taken) >= most:
            raise ConfigError(
                f"this client has answered {len(taken)} questions {of} and answers no more; its "
                "limits=ClientLimits(...) say how many"
            )


def _recent(questions: Sequence[Question], at: datetime) -> list[Question]:
    """Return the questions that were taken in the last thirty days, each once."""
    recent = list[Question]()
    for each in questions:
        is_recent = each.outcome == "taken" and parse_time(each.at) > at - _MONTH
        if is_recent and not any(each.same(other) for other in recent):
            recent.append(each)
    return recent


def _line(question: Question) -> str:
    return to_canonical(question.model_dump(mode="json")).decode()
