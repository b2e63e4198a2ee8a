"""The parts of a receipt's predicate: what was asked, done, deleted, spent and measured.

Digests and scalars only, never data. Parts that contradict each other are refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from secede.erasure.canonical_json import to_canonical
from secede.erasure.documents.data_commitment import Commitment
from secede.erasure.documents.ledger_rows import Head, Rung, Verdict
from secede.erasure.documents.request import Trigger
from secede.erasure.types import (
    Count,
    Digest,
    Document,
    Integer,
    Name,
    Number,
    Share,
    Text,
    Timestamp,
    parse_time,
)


class Interval(Document):
    """A share of `count` samples with its interval."""

    value: Share
    low: Share
    high: Share
    count: Annotated[Count, Field(ge=1)]

    @model_validator(mode="after")
    def _holds_its_value(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError("the value lies outside of its interval")
        return self


class Reference(Interval):
    """The same measured on the model that a score is compared with."""

    model: Literal["retrained", "before", "chance"]


class Score(Interval):
    """One measure of the erased model."""

    about: Literal["leaver", "usefulness"]
    measure: Text
    reference: Reference | None = None


class Verification(Document):
    """What was measured, and the two answers; without a retrained model they stay open."""

    scores: Annotated[tuple[Score, ...], Field(min_length=1, max_length=64)]
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    margin_points: Annotated[float, Field(ge=0, le=100)]
    forgotten: Verdict
    by_definition: bool = False  # trained from scratch without the client: nothing to measure
    useful: Verdict

    @model_validator(mode="after")
    def _answers_have_grounds(self) -> Self:
        compared = [s for s in self.scores if s.reference and s.reference.model == "retrained"]
        if self.by_definition and self.forgotten != "yes":
            raise ValueError("forgotten by definition, and yet not 'yes'")
        measured = any(score.about == "leaver" for score in compared)
        if self.forgotten == "yes" and not (self.by_definition or measured):
            raise ValueError("forgotten 'yes' needs a score of the leaver beside retraining's")
        return self


STANDING_LIMITS = (
    "This is evidence, not proof: it says what was measured and gives no formal guarantee.",
    "It speaks of the model named here, and of no copy or output of an earlier one.",
    "Scores cover the samples and attacks that were used; other attacks may find more.",
    "What was destroyed and when backups end is the server's own statement.",
    "Signatures show who stated this and that it was not altered since, not that it is true.",
)
BY_OPERATOR = (
    "The request was made by the server's operator on the client's behalf, unsigned by it."
)

Setting = bool | Integer | Number | Text | None
Settings = Annotated[dict[Name, Setting], Field(max_length=128)]
Labels = Annotated[dict[Name, Text], Field(max_length=64)]


class RequestPart(Document):
    """What was asked, by whom, and the dates of the law's clock."""

    digest: Digest
    federation: Name
    client: Name
    trigger: Trigger
    issued: Timestamp
    received: Timestamp
    acknowledged: Timestamp | None = None
    due: Timestamp
    extended_to: Timestamp | None = None
    promoted: Timestamp  # the new model went into service
    completed: Timestamp  # after the last thing was destroyed, the receipt was made out

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not parse_time(self.received) <= parse_time(self.promoted) <= parse_time(self.completed):
            raise ValueError("received, promoted and completed are not in this order")
        return self

    @property
    def deadline(self) -> str:
        """The day by which the law wants it done, with an extension if there was one."""
        return self.extended_to or self.due

    @property
    def in_time(self) -> bool:
        """Whether it was completed by then."""
        return parse_time(self.completed) <= parse_time(self.deadline)


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
    at: Timestamp
    digest: Digest | None = None


class Remaining(Document):
    """Something that backups hold until a date."""

    what: Text
    until: Timestamp
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
    limits: Annotated[tuple[Text, ...], Field(min_length=1, max_length=32)] = STANDING_LIMITS

    @property
    def own_limits(self) -> tuple[str, ...]:
        """The limits of this erasure, without those that stand in every receipt."""
        return tuple(limit for limit in self.limits if limit not in STANDING_LIMITS)

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
        if not set(STANDING_LIMITS) <= set(self.limits):
            raise ValueError("the standing limits of a receipt must all be stated")
        return self


DESTROYED_KINDS = {  # what matters most comes first
    "model-before": "a model that carried the client, its file at the server",
    "last-update": "the client's last update, its file at the server",
    "history": "the updates that the server had kept while training",
    "leaver-state": "what the client returned from its local step",
    "guarded-state": "the same as post-training started from it",
    "server-state": "the state that the server started from",
    "intermediate-state": "a state between two rounds of post-training",
}
MAX_LISTED = 12  # of a kind that the receipt lists one by one; more become one entry


@dataclass(frozen=True)
class DestroyedItem:
    """Something that was destroyed, and when that was written down."""

    what: str  # a key of WORDS
    digest: str | None
    at: str


def summarise_destroyed(gone: Sequence[DestroyedItem]) -> tuple[Destroyed, ...]:
    """Return a receipt's entries for what was destroyed, kind by kind."""
    entries = list[Destroyed]()
    for what, words in DESTROYED_KINDS.items():
        same = [thing for thing in gone if thing.what == what]
        if len(same) > MAX_LISTED:
            last = max(thing.at for thing in same)
            entries.append(Destroyed(what=f"{words}: {len(same)} of them", at=last))
        else:
            entries += [Destroyed(what=words, at=g.at, digest=g.digest) for g in same]
    return tuple(entries)


STATEMENT: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE: Literal["https://secede.dev/erasure/v1"] = "https://secede.dev/erasure/v1"


class Sha256(Document):
    """A digest set with the one algorithm that is used."""

    sha256: Digest


class Subject(Document):
    """What the statement is about: the erased model."""

    name: Literal["erased-model"] = "erased-model"
    digest: Sha256


class Statement(Document):
    """The signed document."""

    type_: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")] = STATEMENT
    subject: Annotated[tuple[Subject, ...], Field(min_length=1, max_length=1)]
    predicate_type: Annotated[
        Literal["https://secede.dev/erasure/v1"], Field(alias="predicateType")
    ] = PREDICATE
    predicate: Predicate

    @classmethod
    def about(cls, predicate: Predicate) -> Self:
        """Return the statement of a predicate about its model after the erasure."""
        subject = Subject(digest=Sha256(sha256=predicate.models.after))
        return cls(subject=(subject,), predicate=predicate)

    @model_validator(mode="after")
    def _is_about_its_model(self) -> Self:
        if self.subject[0].digest.sha256 != self.predicate.models.after:
            raise ValueError("the subject is another model than the one after the erasure")
        return self

    def payload(self) -> bytes:
        """Return the bytes that are signed."""
        return to_canonical(self.model_dump(mode="json", by_alias=True))


def schema_text() -> str:
    """Return the JSON schema of a statement, as `schemas/erasure-v1.json` holds it.

    To renew that file, print what this returns.
    """
    # As it is written: then all fields are required, also those that have a default here.
    schema = _closed(Statement.model_json_schema(by_alias=True, mode="serialization"))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": PREDICATE}
    return json.dumps({**head, **schema}, indent=1, sort_keys=True, ensure_ascii=False)


def _closed(schema: Any) -> Any:
    """Return the schema with names that fit no pattern refused, as the models refuse them."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "patternProperties" in schema else {}
    return {**{key: _closed(part) for key, part in schema.items()}, **closed}


RECEIPT_TYPE = "application/vnd.in-toto+json"


MAX_RECEIPT_BYTES = 256 * 1024  # bytes of a signed receipt; one takes about 10,000


SERVER = "server"
