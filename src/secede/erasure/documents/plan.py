"""The plan of an erasure: the ladder of methods, what each takes, who takes part, the margins.

It is made before anybody is asked for anything, printed by a dry run, and followed to the letter:
its digest is in the ledger. Imports no torch.
"""

from __future__ import annotations

import io
from typing import Annotated, Literal

from pydantic import Field, ValidationError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text as Plain

from secede.erasure.canonical_json import digest, to_canonical
from secede.erasure.documents.ledger_rows import MAX_NAMES, PlanBody, Rung
from secede.erasure.documents.receipt import Setting
from secede.erasure.types import (
    Count,
    Digest,
    Document,
    Fraction,
    Name,
    Number,
    Scalar,
    Text,
    Timestamp,
    describe_errors,
    is_name,
)
from secede.errors import RecordError
from secede.text import format_bytes, list_first

_LINE = "plan: "
_HIDDEN = (
    "Secure aggregation hides single updates: none is checked by itself, a robust mean is not "
    "possible, only the mean tells what may fade, and the guard knows neither the leaver's last "
    "update nor the others' mean."
)
Mean = Literal["mean", "trimmed", "median"]
_MEANS = {"mean": "their weighted mean", "trimmed": "a trimmed mean", "median": "the median"}
MEAN_LIMITS: dict[str, tuple[str, ...]] = {
    "mean": (
        "one malicious retained client can drag the mean anywhere, unless the gate sees it",
        "each weighs by the samples that the federation pinned for it, by those that it claims "
        "where none are pinned",
    ),
    "trimmed": (
        "it leaves out a fifth of the clients at each end, at least one: more break it, and with "
        "two left it leaves out nobody",
        "clients count alike, whatever samples they have",
        "where clients' data differ it is biased towards what most have",
    ),
    "median": (
        "it holds while fewer than half of the retained clients are malicious",
        "clients count alike, whatever samples they have",
        "where clients' data differ it is biased towards what most have",
    ),
}


class Step(Document):
    """One rung: a method with every parameter, and what it is predicted to take."""

    rung: Rung
    method: Name
    settings: Annotated[dict[Name, Setting | tuple[Setting, ...]], Field(max_length=64)]
    parameters: Annotated[dict[Name, Setting], Field(max_length=64)]
    needs: Annotated[tuple[Text, ...], Field(max_length=8)]
    max_rounds: Count  # of post-training at most, or of retraining
    min_rounds: Count  # to take however good the model is before: all of them, for retraining
    upload_bytes: Count  # for all of these rounds, counting included
    download_bytes: Count


class Omitted(Document):
    """A rung that is not possible here, and why."""

    rung: Rung
    reason: Text


class Margins(Document):
    """What may be lost: the gate's margins, and the verdict's."""

    overall: Fraction = 0.05
    per_class: Fraction = 0.1
    min_samples: Annotated[int, Field(ge=1)] = 30  # samples of a class that is judged
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    points: Annotated[float, Field(ge=0, le=100)] = 5.0  # from retraining, where there is one


class GuardLimits(Document):
    """The guard's limits for what the leaver returns, in units of a third of the distance to
    freshly initialised models; docs/threats.md says where they come from."""

    max_distance: Annotated[float, Field(gt=0, le=100)] = (
        1.25  # from the reference: more is refused
    )
    radius: Annotated[float, Field(gt=0, le=100)] = 1.0  # more is pulled back, unless a method has
    # a radius of its own
    min_distance: Annotated[float, Field(ge=0, le=100)] = (
        0.001  # to any known state: less is refused
    )
    min_line_distance: Annotated[float, Field(ge=0, le=100)] = 0.0002  # to the line through them


class Plan(Document):
    """What is going to be done for one request."""

    version: Literal[1] = 1
    request: Digest
    federation: Name
    client: Name
    model: Digest  # that serves now
    ladder: Annotated[tuple[Step, ...], Field(min_length=1, max_length=8)]
    omitted: Annotated[tuple[Omitted, ...], Field(max_length=8)]
    retained: Annotated[tuple[Name, ...], Field(min_length=1, max_length=100_000)]
    mean: Mean
    margins: Margins
    guard: GuardLimits
    quorum: Fraction  # of the retained clients' samples that must take part; below, the next rung
    client_timeout: Annotated[Number, Field(gt=0)]  # that a retained client has for one answer
    measure_at_leaver: bool  # in the end: how many of its own samples does the new model get right?
    leaver_timeout: Annotated[Number, Field(gt=0)]  # that the leaver has for one answer
    wait_until: Timestamp | None  # silence before is waited out; None: the next rung at once
    backups_until: Timestamp | None
    single_updates: bool = True  # False: secure aggregation hides them
    keep_unused_weights: bool = False  # after a local step, that the others' training does not use

    def content(self) -> bytes:
        """Return the plan as it is written down and hashed."""
        return to_canonical(self.model_dump(mode="json"))

    def digest(self) -> str:
        """Return what tells this plan from every other."""
        return digest(self.model_dump(mode="json"))

    def line(self) -> str:
        """Return the plan as one line of a log, for whoever follows that."""
        return _LINE + self.model_dump_json()

    @classmethod
    def of_line(cls, line: str) -> Plan | None:
        """Return the plan that a line of a log holds; None if it is another line."""
        if not line.startswith(_LINE):
            return None
        try:
            return cls.model_validate_json(line.removeprefix(_LINE))
        except ValidationError as error:
            raise RecordError(f"a plan that cannot be read: {describe_errors(error)}") from error

    def body(self, rung: int) -> PlanBody:
        """Return the ledger's row for a rung."""
        step = self.ladder[rung]
        settings: dict[str, Scalar] = {
            name: value
            for name, value in step.parameters.items()
            if not isinstance(value, str) or is_name(value)  # free text stays out of the ledger
        }
        return PlanBody(
            request=self.request,
            plan=self.digest(),
            rung=step.rung,
            method=step.method,
            settings=settings,
            clients=self.retained[:MAX_NAMES],
            client_count=len(self.retained),
            rounds=step.max_rounds,
            upload_bytes=step.upload_bytes,
            download_bytes=step.download_bytes,
        )

    def show(self) -> Table:
        """Return the plan as a table for people: one row for each rung."""
        table = Table(
            title=f"Plan: erase {self.client} from {self.federation}, model {self.model[:12]}",
            title_justify="left",
            caption="\n".join(self._notes()),
            caption_justify="left",
            box=box.SIMPLE,
        )
        for name in ("", "rung", "method", "needs", "rounds", "up", "down"):
            table.add_column(name, overflow="fold", no_wrap=name in ("rung", "method", "rounds"))
        for number, step in enumerate(self.ladder, start=1):
            cells = (
                str(number),
                step.rung,
                step.method,
                ", ".join(step.needs) or "nothing",
                str(step.max_rounds)
                if step.min_rounds == step.max_rounds
                else f"{step.min_rounds} to {step.max_rounds}",
                format_bytes(step.upload_bytes),
                format_bytes(step.download_bytes),
            )
            table.add_row(*(Plain(cell) for cell in cells))
        return table

    def text(self, width: int = 100) -> str:
        """Return the same table as plain lines, for a log."""
        console = Console(width=width, color_system=None, force_terminal=False, file=io.StringIO())
        with console.capture() as captured:
            console.print(self.show())
        lines = (line.rstrip() for line in captured.get().splitlines())
        return "\n".join(line for line in lines if line)

    def _fades(self) -> str:
        if self.keep_unused_weights:
            return (
                "What the retained clients' training does not use is kept as the leaver returns "
                "it, as asked, and with it any backdoor that their training does not undo."
            )
        if self.ladder[0].max_rounds < 2:
            return "Nothing fades: that takes a second round."
        return (
            "In the first of them what the retained clients' training does not use is taken out "
            "of the layers but for the last, and with it a small trigger's backdoor."
        )

    def _notes(self) -> list[str]:
        names = list_first(self.retained, 8)
        margins, local = self.margins, self.ladder[0].rung == "local-step"
        notes = [
            f"Who takes part: {names} ({len(self.retained)})"
            + ("; the leaver on a local step only." if local else "."),
            f"Gate: a loss of at most {100 * margins.overall:g} points over all samples, "
            f"{100 * margins.per_class:g} of a class with {margins.min_samples} or more.",
            f"Updates are joined by {_MEANS[self.mean]} ({'; '.join(MEAN_LIMITS[self.mean])}).",
            f"Quorum: {100 * self.quorum:g} % of the retained clients' samples. Who is silent for "
            f"{self.client_timeout:g} seconds, or sends what cannot be used, is left out of the "
            "rung and named.",
            f"The next rung is taken if {'the leaver is silent, its state is refused or ' * local}"
            "the gate fails; after the last one the old model stays.",
        ]
        if not self.single_updates:
            notes.append(_HIDDEN)
        if local:
            wait = f", again until {self.wait_until}" if self.wait_until else ""
            notes.append(f"The leaver has {self.leaver_timeout:g} seconds to answer{wait}.")
            least = self.ladder[0].min_rounds
            notes.append(
                f"At least {least} of the rounds after a local step, even where none would be "
                "needed: what the leaver returned is not what serves."
                if least
                else "Where no round is needed, what the leaver returned is what serves."
            )
            notes.append(self._fades())
            notes.append(
                "In the end the leaver gets the new model, and tells how many of its own samples "
                "that gets right."
                if self.measure_at_leaver
                else "The leaver does not get the new model; nothing is measured on its samples."
            )
        notes += [
            f"Set for {step.method}: {', '.join(f'{k} = {v}' for k, v in step.settings.items())}."
            for step in self.ladder
            if step.settings
        ]
        notes += [f"Not possible: {left.rung}: {left.reason}." for left in self.omitted]
        return notes
