"""Rows of the ledger: the body of each kind, and the row that links it to the row before.

Bodies hold names, digests and scalars. They have no field for free text, updates or samples, and
unknown fields are refused, so that nobody's data gets in by mistake.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from secede.erasure.canonical_json import digest, to_canonical
from secede.erasure.types import (
    MAX_SAFE_INTEGER,
    Count,
    Digest,
    Document,
    Forgotten,
    Name,
    Rung,
    Scalars,
    Status,
    Timestamp,
    Trigger,
    Verdict,
    describe_errors,
    format_time,
)
from secede.errors import RecordError, TrustError

MAX_ROW_BYTES = 1 << 20
MAX_NAMES = 4096  # clients that one row lists
Names = Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)]


class BodyOfRequest(Document):
    """A body that is about one request."""

    request: Digest


class FederationBody(Document):
    """What federation.json says from now on, by its digest."""

    federation: Digest


class KeysBody(Document):
    """Ids of public keys of server and clients; several rows where they do not fit into one."""

    keys: Annotated[dict[Name, Digest], Field(max_length=MAX_NAMES)]


class RequestBody(BodyOfRequest):
    """An accepted request, by the digest of its signed bytes and the id of the key."""

    client: Name
    key: Digest
    trigger: Trigger
    model: Digest
    issued: Timestamp
    expires: Timestamp
    due: Timestamp


class AcknowledgedBody(BodyOfRequest):
    """When the server first signed the acknowledgement of a request."""

    acknowledged: Timestamp


class ExtendedBody(BodyOfRequest):
    """An extension of a request's due date; the acknowledgement has the reason."""

    extended_to: Timestamp


class PlanBody(BodyOfRequest):
    """One rung of a plan: its method and predicted cost.

    The plan's file, whose digest is `plan`, lists all clients where they do not fit into a row.
    """

    plan: Digest
    rung: Rung
    method: Name
    settings: Scalars = Field(default_factory=dict)
    clients: Names
    client_count: Count  # listed here or not
    rounds: Count
    upload_bytes: Count
    download_bytes: Count


class TransitionBody(BodyOfRequest):
    """A transition of an erasure to another state, with the scalars of guard and gate."""

    number: Count
    state: Name
    model: Digest | None = None
    scalars: Scalars = Field(default_factory=dict)


class ModelBody(Document):
    """A model that was registered, or whose status changed."""

    model: Digest
    parent: Digest | None
    run: Name
    round: Count
    status: Status


class DeliveredBody(Document):
    """The clients that received a model; several rows where they do not fit into one."""

    model: Digest
    clients: Names


class SketchBody(Document):
    """The fingerprint of a model, or of an erased client's update, by the digests of its files."""

    what: Literal["model", "update"]
    of: Digest
    sketch: Digest
    seed: Digest | None  # None: there is a digest alone, and no sums


class DestroyedBody(BodyOfRequest):
    """Something that was deleted, and until when backups may hold it."""

    what: Name
    digest: Digest | None = None
    backups_until: Timestamp | None = None


class ReceiptBody(BodyOfRequest):
    """An issued receipt, by the digest of its signed payload."""

    receipt: Digest
    before: Digest
    after: Digest
    rung: Rung
    method: Name
    forgotten: Forgotten
    useful: Verdict


Kind = Literal[
    "federation",
    "keys",
    "request",
    "acknowledged",
    "extended",
    "plan",
    "transition",
    "model",
    "delivered",
    "sketch",
    "destroyed",
    "receipt",
]
BODIES: dict[Kind, type[Document]] = {
    "federation": FederationBody,
    "keys": KeysBody,
    "request": RequestBody,
    "acknowledged": AcknowledgedBody,
    "extended": ExtendedBody,
    "plan": PlanBody,
    "transition": TransitionBody,
    "model": ModelBody,
    "delivered": DeliveredBody,
    "sketch": SketchBody,
    "destroyed": DestroyedBody,
    "receipt": ReceiptBody,
}
_KINDS: dict[type[Document], Kind] = {model: kind for kind, model in BODIES.items()}


def kind_of(body: Document) -> Kind:
    """Return the kind of the rows that hold such a body."""
    if type(body) not in _KINDS:
        raise RecordError(f"no row of the ledger can hold a {type(body).__name__}")
    return _KINDS[type(body)]


def key_ids(bodies: Iterable[Document]) -> dict[str, str]:
    """Return the key of each name by what the ledger says last."""
    ids: dict[str, str] = {}
    for body in bodies:
        if isinstance(body, KeysBody):
            ids |= body.keys
    return ids


class Head(Document):
    """The end of a ledger: the number and hash of its last row."""

    number: Count
    hash: Digest


START = Head(number=0, hash="0" * 64)  # of an empty ledger


class Row(Document):
    """A row of the ledger; `hash` is the digest of all other fields."""

    number: Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]
    at: Timestamp
    kind: Kind
    body: dict[str, Any]
    previous: Digest
    hash: Digest

    @cached_property
    def document(self) -> Document:
        """The body, as a document of the row's kind; TrustError if it is not of that kind."""
        return check_body(self.kind, to_canonical(self.body))

    @property
    def head(self) -> Head:
        """The head of a ledger that ends with this row."""
        return Head(number=self.number, hash=self.hash)

    @property
    def line(self) -> bytes:
        """The row as a line of an exported ledger."""
        return to_canonical(self.model_dump()) + b"\n"


def link_row(head: Head, body: Document, now: datetime) -> Row:
    """Return the row that follows `head`."""
    row = {
        "number": head.number + 1,
        "at": format_time(now),
        "kind": kind_of(body),
        "body": body.model_dump(mode="json"),
        "previous": head.hash,
    }
    return checked_row({**row, "hash": digest(row)})


def checked_row(value: dict[str, Any]) -> Row:
    """Return the row in `value`; TrustError unless its shape, body and hash are right."""
    try:
        row = Row.model_validate(value)
    except ValidationError as error:
        raise TrustError(f"not a row of a ledger ({describe_errors(error)})") from error
    _ = row.document  # raises for a body of another kind
    if digest({key: part for key, part in value.items() if key != "hash"}) != row.hash:
        raise TrustError(f"row {row.number} was altered: its hash does not fit its content")
    return row


def check_body(kind: Kind, text: bytes) -> Document:
    """Return the body in `text`; TrustError if it is not of this kind."""
    try:
        return BODIES[kind].model_validate_json(text)
    except ValidationError as error:
        raise TrustError(f"not a body of kind {kind} ({describe_errors(error)})") from error
