"""The plan of an erasure: the ladder of methods, what each takes, who takes part, the margins.

It is made before any client is asked, printed by a dry run, and followed to the letter: its digest
is in the ledger.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from secede.erasure.canonical_json import digest, to_canonical
from secede.erasure.documents.canary_reading import CanaryRule
from secede.erasure.documents.ledger_rows import MAX_NAMES, PlanBody
from secede.erasure.types import (
    Count,
    Digest,
    Document,
    Fraction,
    Name,
    Number,
    Rung,
    Scalar,
    Setting,
    Text,
    Timestamp,
    describe_errors,
    is_name,
)
from secede.errors import RecordError

_LINE = "plan: "
Mean = Literal["mean", "trimmed", "median"]


class Step(Document):
    """A rung of the ladder: a method with every parameter, and its predicted cost."""

    rung: Rung
    method: Name
    settings: Annotated[dict[Name, Setting | tuple[Setting, ...]], Field(max_length=64)]
    parameters: Annotated[dict[Name, Setting], Field(max_length=64)]
    needs: Annotated[tuple[Text, ...], Field(max_length=8)]
    max_rounds: Count  # of post-training, or of retraining
    min_rounds: Count  # however good the model is before: all of them, for retraining
    upload_bytes: Count  # for all of these rounds, counting included
    download_bytes: Count


class Omitted(Document):
    """A rung that is not possible, and why."""

    rung: Rung
    reason: Text


class Margins(Document):
    """How much accuracy may be lost: the margins of the gate and of the verdict."""

    overall: Fraction = 0.05
    per_class: Fraction = 0.1
    min_samples: Annotated[int, Field(ge=1)] = 30  # samples of a class that is judged
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95


PositiveUnits = Annotated[float, Field(gt=0, le=100)]
Units = Annotated[float, Field(ge=0, le=100)]


class GuardLimits(Document):
    """The guard's limits for the state that the leaver returns; docs/threats.md says why these.

    A unit is a third of the distance to freshly initialised models.
    """

    max_distance: PositiveUnits = 1.25  # from the reference: more is refused
    radius: PositiveUnits = 1.0  # around it, more is pulled back; a method's own counts instead
    min_distance: Units = 0.001  # to any known state: less is refused
    min_line_distance: Units = 0.0002  # to the line through them


Seconds = Annotated[Number, Field(gt=0)]


class Plan(Document):
    """What will be done for one request."""

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
    client_timeout: Seconds  # for one answer of a retained client
    measure_at_leaver: bool  # its canaries, and how many of its own samples the model gets right
    leaver_timeout: Seconds  # for one answer of the leaver
    wait_until: Timestamp | None  # for a silent leaver; None: the next rung at once
    backups_until: Timestamp | None
    single_updates: bool = True  # False: secure aggregation hides them
    canary_rule: CanaryRule | None = (
        None  # None: nobody is asked, or the client planted no canaries
    )
    keep_unused_weights: bool = False  # after a local step, that the others' training does not use

    def content(self) -> bytes:
        """Return the plan's canonical JSON, as it is written and hashed."""
        return to_canonical(self.model_dump(mode="json"))

    def digest(self) -> str:
        """Return the SHA-256 of the written plan."""
        return digest(self.model_dump(mode="json"))

    def line(self) -> str:
        """Return the plan as one line of a log, for a program that reads it there."""
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
