"""What a row of the ledger may hold, kind by kind: names, digests and scalars, nothing else.

There is no field for free text, updates, samples or anybody's data, and unknown fields are
refused, so none of it can get in by mistake.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from secede.erasure.documents.request import Trigger
from secede.erasure.types import Count, Digest, Document, Moment, Name, Scalars, faults
from secede.errors import TrustError

Rung = Literal["local-step", "server-side", "retraining"]
Status = Literal["serving", "superseded", "retired"]
Reply = Literal["yes", "no", "undetermined"]
Names = Annotated[tuple[Name, ...], Field(max_length=4096)]


class RequestBody(Document):
    """A request that was accepted, by the digest of its signed bytes."""

    request: Digest
    client: Name
    trigger: Trigger
    model: Digest
    issued: Moment
    expires: Moment
    due: Moment


class ExtendedBody(Document):
    """A request whose due date was put off; the reason is in the notice that its client got."""

    request: Digest
    extended_to: Moment


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
    backups_until: Moment | None = None


class ReceiptBody(Document):
    """The receipt that was issued, by the digest of what was signed."""

    request: Digest
    receipt: Digest
    before: Digest
    after: Digest
    rung: Rung
    method: Name
    forgotten: Reply
    useful: Reply


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
        raise TrustError(f"a body of kind {kind} that is not one ({faults(error)})") from error
