"""The receipt of an erasure: a statement in a DSSE envelope, signed by the server.

The leaver or an auditor countersigns it. Anybody who has the public keys verifies it offline,
with the model's digest and the ledger beside it where they have those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from secede.erasure import envelope
from secede.erasure.bodies import ReceiptBody
from secede.erasure.canonical import parse
from secede.erasure.chain import START, Head, Row, walk
from secede.erasure.fields import faults
from secede.erasure.keys import PrivateKey, PublicKey
from secede.erasure.ledger import rows_of
from secede.erasure.predicate import (
    LIMITS,
    Costs,
    Destroyed,
    MethodPart,
    Models,
    Predicate,
    Remaining,
    RequestPart,
    Scope,
    Software,
)
from secede.erasure.scores import Verification
from secede.erasure.statement import Sha256, Statement, Subject
from secede.errors import TrustError

PAYLOAD_TYPE = "application/vnd.in-toto+json"
LIMIT = 256 * 1024  # bytes of a signed receipt; one takes about 10,000
SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A receipt that holds, who signed it, and what it was compared with."""

    statement: Statement
    digest: str  # of what was signed
    server: str
    countersigned_by: tuple[str, ...]
    model_checked: bool
    ledger: Head | None  # how far the ledger goes that it was compared with


def build(
    *,
    request: RequestPart,
    scope: Scope,
    method: MethodPart,
    software: Software,
    models: Models,
    destroyed: Iterable[Destroyed],
    remaining: Iterable[Remaining],
    costs: Costs,
    verification: Verification,
    ledger: Head,
    further_limits: Iterable[str] = (),
) -> Statement:
    """Return the statement; parts that contradict each other are refused."""
    try:
        predicate = Predicate(
            request=request,
            scope=scope,
            method=method,
            software=software,
            models=models,
            destroyed=tuple(destroyed),
            remaining=tuple(remaining),
            costs=costs,
            verification=verification,
            ledger=ledger,
            limits=(*LIMITS, *further_limits),
        )
        subject = Subject(digest=Sha256(sha256=models.after))
        return Statement(subject=(subject,), predicate=predicate)
    except ValidationError as error:
        raise TrustError(f"a receipt cannot be made of this: {faults(error)}") from error


def sign(statement: Statement, server_key: PrivateKey) -> bytes:
    """Return the receipt, signed by the server."""
    return envelope.sign(statement.payload(), PAYLOAD_TYPE, server_key)


def countersign(data: bytes, key: PrivateKey) -> bytes:
    """Return the receipt with one more signature; whoever signs should have verified it."""
    read(envelope.unverified(data, PAYLOAD_TYPE, limit=LIMIT))
    return envelope.countersign(data, key)


def verify(
    data: bytes,
    keys: Mapping[str, PublicKey],
    *,
    model_digest: str | None = None,
    ledger: Path | None = None,
    server: str = SERVER,
    countersignatures: int = 0,
) -> Verified:
    """Return the receipt if every signature in it holds and the server's is among them.

    With `model_digest`, the model must be the one that it is about; with `ledger`, that one must
    be whole and hold what the receipt names. `countersignatures` asks for at least so many.
    """
    if server not in keys:
        raise TrustError(f"no public key of the server {server!r} among {_list(keys)}")
    payload, signers = envelope.verify(data, PAYLOAD_TYPE, keys, limit=LIMIT)
    others = tuple(name for name in signers if name != server)
    if server not in signers:
        raise TrustError(f"the receipt is signed by {_list(signers)}, not by the server {server!r}")
    if len(others) < countersignatures:
        raise TrustError(
            f"the receipt is countersigned by {len(others)}, expected {countersignatures} or more"
        )
    statement, digest = read(payload), hashlib.sha256(payload).hexdigest()
    if model_digest is not None:
        _check_model(statement.predicate.models, model_digest)
    return Verified(
        statement=statement,
        digest=digest,
        server=server,
        countersigned_by=others,
        model_checked=model_digest is not None,
        ledger=None if ledger is None else _check_ledger(statement, digest, ledger),
    )


def read(payload: bytes) -> Statement:
    """Return the statement in an envelope's payload; nothing is said about who signed it."""
    parse(payload, LIMIT)
    try:
        statement = Statement.model_validate_json(payload)
    except ValidationError as error:
        raise TrustError(f"not a receipt of an erasure: {faults(error)}") from None
    if statement.payload() != payload:
        raise TrustError("the receipt is not written in its one canonical form")
    return statement


def _check_model(models: Models, found: str) -> None:
    if found == models.before:
        raise TrustError("this is the model from before the erasure, not the erased one")
    if found != models.after:
        raise TrustError(
            f"the receipt is about model {models.after[:12]}…, this one is {found[:12]}…: "
            "it is another model, or it was altered"
        )


def _check_ledger(statement: Statement, digest: str, path: Path) -> Head:
    told = statement.predicate
    head, asked, receipts = START, False, set[str]()
    for row in walk(rows_of(path), told.ledger):
        head = row.head
        asked = asked or (row.number <= told.ledger.number and _is_request(row, statement))
        if row.kind == "receipt":
            body = ReceiptBody.model_validate(row.body)
            if body.request == told.request.digest:
                receipts.add(body.receipt)
    if not asked:
        raise TrustError("the ledger is whole, but the receipt's request is not in it")
    if receipts and digest not in receipts:
        raise TrustError("the ledger names another receipt for this request")
    return head


def _is_request(row: Row, statement: Statement) -> bool:
    request = statement.predicate.request
    named = (row.body.get("request"), row.body.get("client"))
    return row.kind == "request" and named == (request.digest, request.client)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "nobody"
