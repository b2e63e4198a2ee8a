"""The receipt of an erasure: what was requested, done, deleted, spent and measured.

An in-toto statement whose predicate holds digests, names of institutions and numbers, never data.
Parts that contradict each other are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from secede.erasure.canonical_json import digest, to_canonical
from secede.erasure.documents.canary_reading import CanaryCommitment, CanaryPart
from secede.erasure.documents.data_commitment import Commitment
from secede.erasure.documents.ledger_rows import FederationBody, Head, RequestBody, Row, key_ids
from secede.erasure.signing.keys import SERVER
from secede.erasure.types import (
    Count,
    Digest,
    Document,
    Forgotten,
    Fraction,
    Name,
    Rung,
    Setting,
    Text,
    Timestamp,
    Trigger,
    Verdict,
    parse_time,
)
from secede.errors import TrustError

RECEIPT_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Literal["https://secede.dev/erasure/v2"] = "https://secede.dev/erasure/v2"
MAX_RECEIPT_BYTES = 256 * 1024  # signed; one takes about 10,000
STANDING_LIMITS = (
    "This is evidence, not proof: it says what was measured and gives no formal guarantee.",
    "It covers the model named here, and no copy or output of an earlier one.",
    "Scores cover the samples and attacks that were used; other attacks may find more.",
    "What was destroyed and when backups end is the server's own statement.",
    "Signatures show who stated this and that it was not altered since, not that it is true.",
)
BY_OPERATOR = (
    "The request was made by the server's operator on the client's behalf, unsigned by it."
)

MAX_ATTEMPTS = 16  # rungs given up that a receipt lists, the last ones
MAX_LEFT_OUT = 512  # clients left out that a receipt lists

Settings = Annotated[dict[Name, Setting], Field(max_length=128)]
Labels = Annotated[dict[Name, Text], Field(max_length=64)]


class RequestPart(Document):
    """The request, and the dates that count for the deadline of the GDPR."""

    digest: Digest
    key: Digest  # by its id, that the request was signed with
    federation: Name
    client: Name
    trigger: Trigger
    issued: Timestamp
    received: Timestamp
    acknowledged: Timestamp | None = None
    due: Timestamp
    extended_to: Timestamp | None = None
    promoted: Timestamp  # when the new model went into service
    completed: Timestamp  # when the receipt was built, after the last deletion

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not parse_time(self.received) <= parse_time(self.promoted) <= parse_time(self.completed):
            raise ValueError("received, promoted and completed are not in this order")
        return self

    @property
    def deadline(self) -> str:
        """The due date, or the later one after an extension."""
        return self.extended_to or self.due

    @property
    def in_time(self) -> bool:
        """Whether the erasure was completed by the deadline."""
        return parse_time(self.completed) <= parse_time(self.deadline)


class FederationPart(Document):
    """Who was in the federation when the request came, as the ledger has it."""

    digest: Digest  # of federation.json
    server: Digest  # the id of the server's key
    keys: Digest  # of the names of all, and the ids of their keys
    controller: Text | None = None  # as federation.json names it, and so the contact
    contact: Text | None = None


def federation_part(rows: Iterable[Row], request: str) -> FederationPart:
    """Return what the ledger says of the federation before its row of a request."""
    bodies = list[Document]()
    for row in rows:
        bodies.append(row.document)
        if isinstance(row.document, RequestBody) and row.document.request == request:
            break
    digests = [body.federation for body in bodies if isinstance(body, FederationBody)]
    keys = key_ids(bodies)
    if not digests or SERVER not in keys:
        raise TrustError("the ledger has no federation or no server's key before the request")
    return FederationPart(digest=digests[-1], server=keys[SERVER], keys=digest(keys))


class Scope(Document):
    """The client's contribution: its rounds, its weight in the mean, a commitment to its data."""

    first_round: Count
    last_round: Count
    rounds: Count
    weight: Fraction
    commitment: Commitment | None = None
    canaries: CanaryCommitment | None = None  # None: it planted none

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.first_round <= self.last_round:
            raise ValueError("the last round is before the first")
        if self.rounds > self.last_round - self.first_round + 1:
            raise ValueError("more rounds than there are from the first to the last")
        return self


class Attempt(Document):
    """A rung of the ladder that was given up, and why."""

    rung: Rung
    method: Name
    outcome: Name


class LeftOut(Document):
    """A retained client that was excluded from the rung, and why."""

    client: Name
    why: Name


class MethodPart(Document):
    """The rung, the method and every parameter."""

    rung: Rung
    name: Name
    parameters: Settings
    plan: Digest
    settings: Settings  # of the plan: margins of the gate, rounds, timeouts
    training: Settings  # of a round, and the seed of all randomness
    guard: Settings | None = None  # limits and measurements; None without a local step
    rounds: Count  # of post-training, or of retraining
    mean: Name = "weighted-mean"
    retained: Count
    left_out: Annotated[tuple[LeftOut, ...], Field(max_length=MAX_LEFT_OUT)] = ()
    tried_before: Annotated[tuple[Attempt, ...], Field(max_length=MAX_ATTEMPTS)] = ()


class Software(Document):
    """Versions of software, and the environment that decides how numbers are rounded."""

    versions: Labels
    environment: Labels = Field(default_factory=dict)


class Computed(Software):
    """The software of some steps; there are several if the erasure continued elsewhere."""

    steps: Annotated[tuple[Name, ...], Field(min_length=1, max_length=16)]


class Models(Document):
    """The models before and after the erasure."""

    before: Digest
    after: Digest

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        if self.before == self.after:
            raise ValueError("the model after the erasure is the one from before")
        return self


class Destroyed(Document):
    """Something that was deleted."""

    what: Text
    at: Timestamp
    digest: Digest | None = None


class Remaining(Document):
    """Something that backups hold until a date."""

    what: Text
    until: Timestamp
    digest: Digest | None = None


class Costs(Document):
    """The cost of the erasure, as the engine counted it."""

    rounds: Count
    upload_bytes: Count
    download_bytes: Count
    gradient_samples: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Interval(Document):
    """A fraction of `count` samples, with its confidence interval."""

    value: Fraction
    low: Fraction
    high: Fraction
    count: Annotated[Count, Field(ge=1)]

    @model_validator(mode="after")
    def _check_interval(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError("the value lies outside of its interval")
        return self


class Reference(Interval):
    """The same fraction, measured on the model that the score is compared with."""

    model: Literal["retrained", "before", "chance"]


class Score(Interval):
    """One measurement of the erased model."""

    about: Literal["leaver", "usefulness"]
    measure: Text
    reference: Reference | None = None


class Verification(Document):
    """What the canaries say of the erased model, the scores, and both verdicts."""

    scores: Annotated[tuple[Score, ...], Field(min_length=1, max_length=64)]
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    forgotten: Forgotten
    canaries: CanaryPart
    useful: Verdict


class Predicate(Document):
    """All that the receipt states about the erasure."""

    request: RequestPart
    federation: FederationPart
    scope: Scope
    method: MethodPart
    software: Annotated[tuple[Computed, ...], Field(min_length=1, max_length=16)]
    models: Models
    destroyed: Annotated[tuple[Destroyed, ...], Field(max_length=64)]
    remaining: Annotated[tuple[Remaining, ...], Field(max_length=64)]
    costs: Costs
    verification: Verification
    ledger: Head
    limits: Annotated[tuple[Text, ...], Field(min_length=1, max_length=32)] = STANDING_LIMITS

    @property
    def own_limits(self) -> tuple[str, ...]:
        """The limits of this erasure, without the standing ones."""
        return tuple(limit for limit in self.limits if limit not in STANDING_LIMITS)

    @property
    def requested_by(self) -> str:
        """The client, or the operator that made the request for it, as one of the limits says."""
        client = self.request.client
        if BY_OPERATOR in self.limits:
            return f"the server's operator, on behalf of {client}"
        return client

    @model_validator(mode="after")
    def _check_forgotten(self) -> Self:
        canaries, retrained = self.verification.canaries, self.method.rung == "retraining"
        try:
            judged = canaries.verdict(self.models.after)
        except TrustError as error:
            raise ValueError(str(error)) from None
        expected = "by-construction" if retrained else judged
        if self.verification.forgotten != expected:
            raise ValueError(f"forgotten is {expected!r} by the rung and the readings")
        about = (self.request.federation, self.request.client, self.request.digest)
        for reading, model in canaries.readings(self.models.before, self.models.after):
            if (reading.federation, reading.client, reading.request) != about:
                raise ValueError("a reading is of another erasure")
            committed = self.scope.canaries and self.scope.canaries.commitment
            of = (reading.root, reading.count)
            if not committed or of != (committed.root, committed.samples):
                raise ValueError("a reading is of canaries that the client never committed to")
            if model is not None and reading.model != model:
                raise ValueError("a reading is of another model")
        return self

    @model_validator(mode="after")
    def _check_deletions(self) -> Self:
        first, last = self.request.received, self.request.completed
        if any(not first <= item.at <= last for item in self.destroyed):
            raise ValueError("something was destroyed before the request came or after completion")
        return self

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if not set(STANDING_LIMITS) <= set(self.limits):
            raise ValueError("the standing limits of a receipt must all be stated")
        return self


class Sha256(Document):
    """A digest set of in-toto, with the one algorithm in use."""

    sha256: Digest


class Subject(Document):
    """The subject of the statement: the erased model."""

    name: Literal["erased-model"] = "erased-model"
    digest: Sha256


class Statement(Document):
    """The signed statement."""

    type_: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")] = (
        STATEMENT_TYPE
    )
    subject: Annotated[tuple[Subject, ...], Field(min_length=1, max_length=1)]
    predicate_type: Annotated[
        Literal["https://secede.dev/erasure/v2"], Field(alias="predicateType")
    ] = PREDICATE_TYPE
    predicate: Predicate

    @classmethod
    def about(cls, predicate: Predicate) -> Self:
        """Return the statement whose subject is the model after the erasure."""
        subject = Subject(digest=Sha256(sha256=predicate.models.after))
        return cls(subject=(subject,), predicate=predicate)

    @model_validator(mode="after")
    def _check_subject(self) -> Self:
        if self.subject[0].digest.sha256 != self.predicate.models.after:
            raise ValueError("the subject is another model than the one after the erasure")
        return self

    def payload(self) -> bytes:
        """Return the bytes that are signed."""
        return to_canonical(self.model_dump(mode="json", by_alias=True))


DESTROYED_KINDS = {  # what matters most comes first
    "model-before": "a model trained with the client (file at the server)",
    "last-update": "the client's last update (file at the server)",
    "history": "the updates that the server kept during training",
    "leaver-state": "the state that the client returned from its local step",
    "guarded-state": "that state as post-training started from it",
    "server-state": "the state that the server-side rung started from",
    "intermediate-state": "a state between two rounds of post-training",
}
MAX_LISTED = 12  # items of a kind that are listed one by one; more become one entry


@dataclass(frozen=True)
class DestroyedItem:
    """Something that was destroyed, and when the ledger recorded it."""

    kind: str  # a key of DESTROYED_KINDS
    digest: str | None
    at: str


def summarise_destroyed(items: Sequence[DestroyedItem]) -> tuple[Destroyed, ...]:
    """Return the receipt's entries for destroyed items, kind by kind."""
    entries = list[Destroyed]()
    for kind, description in DESTROYED_KINDS.items():
        same = [item for item in items if item.kind == kind]
        if len(same) > MAX_LISTED:
            last = max(item.at for item in same)
            entries.append(Destroyed(what=f"{description}: {len(same)} of them", at=last))
        else:
            entries += [Destroyed(what=description, at=i.at, digest=i.digest) for i in same]
    return tuple(entries)
