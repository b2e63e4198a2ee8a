"""The parts of a receipt's predicate: what was asked, done, deleted, spent and measured.

Digests and scalars only, never data. Parts that contradict each other are refused.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from secede.erasure.documents.chain import Head
from secede.erasure.documents.data_commitment import Commitment
from secede.erasure.documents.ledger_rows import Rung
from secede.erasure.documents.request import Trigger
from secede.erasure.documents.scores import Verification
from secede.erasure.types import (
    Count,
    Digest,
    Document,
    Moment,
    Name,
    Number,
    Share,
    Text,
    Whole,
    moment,
)

LIMITS = (
    "This is evidence, not proof: it says what was measured and gives no formal guarantee.",
    "It speaks of the model named here, and of no copy or output of an earlier one.",
    "Scores cover the samples and attacks that were used; other attacks may find more.",
    "What was destroyed and when backups end is the server's own statement.",
    "Signatures show who stated this and that it was not altered since, not that it is true.",
)
BY_OPERATOR = (
    "The request was made by the server's operator on the client's behalf, unsigned by it."
)

Setting = bool | Whole | Number | Text | None
Settings = Annotated[dict[Name, Setting], Field(max_length=128)]
Labels = Annotated[dict[Name, Text], Field(max_length=64)]


class RequestPart(Document):
    """What was asked, by whom, and the dates of the law's clock."""

    digest: Digest
    federation: Name
    client: Name
    trigger: Trigger
    issued: Moment
    received: Moment
    acknowledged: Moment | None = None
    due: Moment
    extended_to: Moment | None = None
    promoted: Moment  # the new model went into service
    completed: Moment  # after the last thing was destroyed, the receipt was made out

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not moment(self.received) <= moment(self.promoted) <= moment(self.completed):
            raise ValueError("received, promoted and completed are not in this order")
        return self

    @property
    def deadline(self) -> str:
        """The day by which the law wants it done, with an extension if there was one."""
        return self.extended_to or self.due

    @property
    def in_time(self) -> bool:
        """Whether it was completed by then."""
        return moment(self.completed) <= moment(self.deadline)


class Scope(Document):
    """What the client had put in: its rounds, its share of the mean, and its data's commitment."""

    first_round: Count
    last_round: Count
    rounds: Count
    weight: Share
    commitment: Commitment | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.first_round <= self.last_round:
            raise ValueError("the last round is before the first")
        if self.rounds > self.last_round - self.first_round + 1:
            raise ValueError("more rounds than there are from the first to the last")
        return self


class Attempt(Document):
    """A rung of the ladder that was tried before, and how it ended."""

    rung: Rung
    method: Name
    outcome: Name


class LeftOut(Document):
    """A retained client that a rung went on without, and why."""

    client: Name
    why: Name


class MethodPart(Document):
    """How it was done: the rung, the method and every parameter."""

    rung: Rung
    name: Name
    parameters: Settings
    plan: Digest
    settings: Settings  # of the plan: margins of the gate, most and least rounds, deadlines
    training: Settings  # what a round is made of, and the seed of all that is random
    guard: Settings | None = None  # its limits and what it measured; None without a local step
    rounds: Count  # of post-training, or of retraining
    mean: Name = "weighted-mean"
    retained: Count
    left_out: Annotated[tuple[LeftOut, ...], Field(max_length=512)] = ()  # of them, on this rung
    tried_before: Annotated[tuple[Attempt, ...], Field(max_length=16)] = ()


class Software(Document):
    """What computes: versions, and what decides how numbers are rounded."""

    versions: Labels
    environment: Labels = Field(default_factory=dict)


class Computed(Software):
    """What computed some of the steps; there is more than one if work went on elsewhere."""

    steps: Annotated[tuple[Name, ...], Field(min_length=1, max_length=16)]


class Models(Document):
    """The model from before the erasure and the one after."""

    before: Digest
    after: Digest

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.before == self.after:
            raise ValueError("the model after the erasure is the one from before")
        return self


class Destroyed(Document):
    """Something that was deleted."""

    what: Text
    at: Moment
    digest: Digest | None = None


class Remaining(Document):
    """Something that backups hold until a date."""

    what: Text
    until: Moment
    digest: Digest | None = None


class Costs(Document):
    """What it took, as the engine counted it."""

    rounds: Count
    upload_bytes: Count
    download_bytes: Count
    gradient_samples: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Predicate(Document):
    """Everything that the receipt says about the erasure."""

    request: RequestPart
    scope: Scope
    method: MethodPart
    software: Annotated[tuple[Computed, ...], Field(min_length=1, max_length=16)]
    models: Models
    destroyed: Annotated[tuple[Destroyed, ...], Field(max_length=64)]
    remaining: Annotated[tuple[Remaining, ...], Field(max_length=64)]
    costs: Costs
    verification: Verification
    ledger: Head
    limits: Annotated[tuple[Text, ...], Field(min_length=1, max_length=32)] = LIMITS

    @property
    def own_limits(self) -> tuple[str, ...]:
        """The limits of this erasure, without those that stand in every receipt."""
        return tuple(limit for limit in self.limits if limit not in LIMITS)

    @property
    def asked_by(self) -> str:
        """Who made the request: the client, or the operator for it, which a limit says."""
        client = self.request.client
        if BY_OPERATOR in self.limits:
            return f"the server's operator, on behalf of {client}"
        return client

    @model_validator(mode="after")
    def _destroyed_in_time(self) -> Self:
        asked = self.request
        if any(not asked.received <= thing.at <= asked.completed for thing in self.destroyed):
            raise ValueError("something was destroyed before the receipt of the request, or after")
        return self

    @model_validator(mode="after")
    def _limits_are_said(self) -> Self:
        if not set(LIMITS) <= set(self.limits):
            raise ValueError("the standing limits of a receipt must all be stated")
        return self
