"""What a row of the ledger may hold, kind by kind: names, digests and scalars, nothing else.

There is no field for free text, updates, samples or anybody's data, and unknown fields are
refused, so none of it can get in by mistake.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from secede.erasure.canonical_json import digest, to_canonical
from secede.erasure.documents.request import Trigger
from secede.erasure.types import (
    MAX_SAFE_INTEGER,
    Count,
    Digest,
    Document,
    Name,
    Scalars,
    Timestamp,
    describe_errors,
    format_time,
)
from secede.errors import TrustError

Rung = Literal["local-step", "server-side", "retraining"]
Status = Literal["serving", "superseded", "retired"]
Verdict = Literal["yes", "no", "undetermined"]
Names = Annotated[tuple[Name, ...], Field(max_length=4096)]


class RequestBody(Document):
    """A request that was accepted, by the digest of its signed bytes."""

    request: Digest
    client: Name
    trigger: Trigger
    model: Digest
    issued: Timestamp
    expires: Timestamp
    due: Timestamp


class ExtendedBody(Document):
    """A request whose due date was put off; the reason is in the notice that its client got."""

    request: Digest
    extended_to: Timestamp


class PlanBody(Document):
    """What is going to be done: the rung, its method and what it is predicted to take.

    Where there are more clients than fit, the plan's own file has the rest: `plan` is its digest.
    """

    request: Digest
    plan: Digest
    rung: Rung
    method: Name
    settings: Scalars = Field(default_factory=dict)
    clients: Names
    taking_part: Count  # all of them, listed here or not
    rounds: Count
    upload_bytes: Count
    download_bytes: Count


class TransitionBody(Document):
    """One step of the workflow, with the guard's and the gate's scalars."""

    request: Digest
    number: Count
    state: Name
    model: Digest | None = None
    scalars: Scalars = Field(default_factory=dict)


class ModelBody(Document):
    """A model that entered the registry or changed its status there."""

    model: Digest
    parent: Digest | None
    run: Name
    round: Count
    status: Status


class DeliveredBody(Document):
    """Who received which model; further rows where there are more clients than fit into one."""

    model: Digest
    clients: Names


class DestroyedBody(Document):
    """What was deleted, by its digest where it has one, and until when backups may hold it."""

    request: Digest
    what: Name
    digest: Digest | None = None
    backups_until: Timestamp | None = None


class ReceiptBody(Document):
    """The receipt that was issued, by the digest of what was signed."""

    request: Digest
    receipt: Digest
    before: Digest
    after: Digest
    rung: Rung
    method: Name
    forgotten: Verdict
    useful: Verdict


Kind = Literal[
    "request", "extended", "plan", "transition", "model", "delivered", "destroyed", "receipt"
]
BODIES: dict[Kind, type[Document]] = {
    "request": RequestBody,
    "extended": ExtendedBody,
    "plan": PlanBody,
    "transition": TransitionBody,
    "model": ModelBody,
    "delivered": DeliveredBody,
    "destroyed": DestroyedBody,
    "receipt": ReceiptBody,
}
KINDS: dict[type[Document], Kind] = {model: kind for kind, model in BODIES.items()}


def check_body(kind: Kind, text: bytes) -> Document:
    """Return the body that `text` holds; anything else than its kind allows is refused."""
    try:
        return BODIES[kind].model_validate_json(text)
    except ValidationError as error:
        raise TrustError(
            f"a body of kind {kind} that is not one ({describe_errors(error)})"
        ) from error


MAX_ROW_BYTES = 1 << 20


class Head(Document):
    """How far a ledger goes: its last row's number, 0 if it has none, and that row's hash."""

    number: Count
    hash: Digest


START = Head(number=0, hash="0" * 64)


class Row(Document):
    """One row; `hash` is over the canonical form of all the rest."""

    number: Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]
    at: Timestamp
    kind: Kind
    body: dict[str, Any]
    previous: Digest
    hash: Digest

    @property
    def head(self) -> Head:
        """The head of a ledger that ends with this row."""
        return Head(number=self.number, hash=self.hash)

    @property
    def line(self) -> bytes:
        """The row as a line of an exported ledger."""
        return to_canonical(self.model_dump()) + b"\n"


def link_row(head: Head, kind: Kind, body: Document, now: datetime) -> Row:
    """Return the row that continues a ledger which ends at `head`."""
    row = {
        "number": head.number + 1,
        "at": format_time(now),
        "kind": kind,
        "body": body.model_dump(mode="json"),
        "previous": head.hash,
    }
    return checked_row({**row, "hash": digest(row)})


def checked_row(value: dict[str, Any]) -> Row:
    """Return the row that `value` holds, once its shape, its body and its hash are right."""
    try:
        row = Row.model_validate(value)
    except ValidationError as error:
        raise TrustError(f"not a row of a ledger ({describe_errors(error)})") from error
    check_body(row.kind, to_canonical(row.body))
    if digest({key: part for key, part in value.items() if key != "hash"}) != row.hash:
        raise TrustError(f"row {row.number} was altered: its hash does not fit what it holds")
    return row
