"""Signing and verifying of receipts.

The server signs a receipt; the leaver or an auditor countersigns it. Anybody who has the public
keys verifies it offline, also against the model and the ledger. A signature of anybody else makes
it invalid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from secede.erasure.canonical_json import parse_document
from secede.erasure.documents import (
    MAX_ATTEMPTS,
    MAX_RECEIPT_BYTES,
    RECEIPT_TYPE,
    START,
    AcknowledgedBody,
    BodyOfRequest,
    DestroyedBody,
    DestroyedItem,
    ExtendedBody,
    FederationBody,
    Head,
    KeysBody,
    ModelBody,
    Models,
    PlanBody,
    Predicate,
    ReceiptBody,
    RequestBody,
    Row,
    Statement,
    TransitionBody,
    check_reading,
    federation_part,
    summarise_destroyed,
)
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import SERVER, PrivateKey, PublicKey
from secede.erasure.storage import rows_of_export, walk_chain
from secede.erasure.types import Document
from secede.errors import TrustError
from secede.text import short_digest

B = TypeVar("B", bound=Document)
_FIRST_STATES = ("local-step", "server-step")  # of a rung


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A valid receipt, its signers, and what it was compared with."""

    statement: Statement
    digest: str  # of the signed payload
    server: str
    countersigned_by: tuple[str, ...]
    model_checked: bool
    readings_signed: bool  # whether the leaver signed all readings of its canaries
    leaver_key: str | None  # the id of the key that they were verified with; None: not at hand
    ledger: Head | None  # the end of the ledger that it was compared with

    def ledger_row(self) -> ReceiptBody:
        """Return the ledger's row of the receipt."""
        return _ledger_row(self.statement.predicate, self.digest)


def sign_receipt(statement: Statement, server_key: PrivateKey) -> bytes:
    """Return the receipt, signed by the server."""
    return dsse.sign(statement.payload(), RECEIPT_TYPE, server_key)


def countersign_receipt(data: bytes, key: PrivateKey) -> bytes:
    """Return the receipt with one more signature; `verify_receipt` says whether that one counts."""
    unverified_statement(data)
    return dsse.countersign(data, key)


def verify_receipt(
    data: bytes,
    keys: Mapping[str, PublicKey],
    *,
    auditors: Mapping[str, PublicKey] | None = None,
    model_digest: str | None = None,
    ledger: Path | None = None,
    server: str = SERVER,
    countersigned_by: Collection[str] = (),
) -> Verified:
    """Return the receipt if the server signed it, and nobody else but the leaver and `auditors`.

    With `model_digest`, it must be about that model; with `ledger`, the ledger must be intact and
    agree with it. All whom `countersigned_by` names must have signed it.
    """
    if server not in keys:
        raise TrustError(f"no public key of the server {server!r} among {_list(keys)}")
    auditors = auditors or {}
    if both := auditors.keys() & keys.keys():
        raise TrustError(
            f"{min(both)!r} is among the auditors and among the clients and the server: rename one"
        )
    payload, signers = dsse.verify(
        data, RECEIPT_TYPE, {**auditors, **keys}, limit=MAX_RECEIPT_BYTES
    )
    if server not in signers:
        raise TrustError(f"the receipt is signed by {_list(signers)}, not by the server {server!r}")
    statement, digest = _parse(payload), hashlib.sha256(payload).hexdigest()
    predicate = statement.predicate
    countersigners = tuple(name for name in signers if name != server)
    if strangers := set(countersigners) - {predicate.request.client, *auditors}:
        raise TrustError(
            f"{min(strangers)!r} signed the receipt too, but is neither the client that left nor "
            "an auditor: that signature must not be there"
        )
    if missing := set(countersigned_by) - set(countersigners):
        raise TrustError(
            f"the receipt is not countersigned by {_list(sorted(missing))}, but by "
            f"{_list(countersigners)}"
        )
    if model_digest is not None:
        _check_model(predicate.models, model_digest)
    leaver = keys.get(predicate.request.client)
    readings = predicate.verification.canaries.signed_readings
    for reading in readings:
        check_reading(reading, leaver)
    return Verified(
        statement=statement,
        digest=digest,
        server=server,
        countersigned_by=countersigners,
        model_checked=model_digest is not None,
        readings_signed=leaver is not None and all(r.envelope is not None for r in readings),
        leaver_key=None if leaver is None else leaver.keyid,
        ledger=None if ledger is None else _check_ledger(predicate, digest, ledger),
    )


def unverified_statement(data: bytes) -> Statement:
    """Return the statement of a receipt without verifying its signatures."""
    return _parse(dsse.unverified_payload(data, RECEIPT_TYPE, limit=MAX_RECEIPT_BYTES))


def _parse(payload: bytes) -> Statement:
    statement = parse_document(Statement, payload, MAX_RECEIPT_BYTES, "a receipt of an erasure")
    if statement.payload() != payload:
        raise TrustError("the receipt is not canonical JSON as it was signed")
    return statement


def _check_model(models: Models, digest: str) -> None:
    if digest == models.before:
        raise TrustError("this is the model from before the erasure, not the erased one")
    if digest != models.after:
        raise TrustError(
            f"the receipt is about model {short_digest(models.after)}, this one is "
            f"{short_digest(digest)}: it is another model, or it was altered"
        )


def _check_ledger(predicate: Predicate, digest: str, path: Path) -> Head:
    """Return the head of the ledger at `path`; TrustError unless it agrees with the receipt."""
    head, related = START, list[Row]()
    for row in walk_chain(rows_of_export(path), predicate.ledger):
        head, body = row.head, row.document
        is_own = isinstance(body, BodyOfRequest) and body.request == predicate.request.digest
        if is_own or isinstance(body, ModelBody | FederationBody | KeysBody):
            related.append(row)
    before = [row for row in related if row.number <= predicate.ledger.number]
    _check_request(predicate, before)
    _check_method(predicate, before)
    _check_models(predicate, before)
    _check_destroyed(predicate, related)
    _check_issued(predicate, digest, related)
    return head


def _check_request(predicate: Predicate, rows: Sequence[Row]) -> None:
    request, accepted = predicate.request, _bodies(rows, RequestBody)
    if not accepted or accepted[0].client != request.client:
        raise TrustError("the ledger is intact, but the receipt's request is not in it")
    _check_same("the request's key", request.key, accepted[0].key)
    # The ledger has no controller and no contact: they are in the file whose digest it names.
    federation = predicate.federation.model_copy(update={"controller": None, "contact": None})
    _check_same("the federation", federation, federation_part(rows, request.digest))
    _check_same("the request's trigger", request.trigger, accepted[0].trigger)
    _check_same("the request's issued", request.issued, accepted[0].issued)
    _check_same("the request's due", request.due, accepted[0].due)
    acknowledged = [body.acknowledged for body in _bodies(rows, AcknowledgedBody)]
    said = acknowledged[-1] if acknowledged else None
    _check_same("the acknowledgement's date", request.acknowledged, said)
    extended = [body.extended_to for body in _bodies(rows, ExtendedBody)]
    _check_same("the extended date", request.extended_to, extended[-1] if extended else None)


def _check_method(predicate: Predicate, rows: Sequence[Row]) -> None:
    """Compare rung, method and rungs given up with the ledger's transitions and plans."""
    method, transitions = predicate.method, _bodies(rows, TransitionBody)
    starts = [body.scalars for body in transitions if body.state in _FIRST_STATES]
    last_start = starts[-1] if starts else {}
    _check_same("the rung", method.rung, last_start.get("rung"))
    _check_same("the method", method.name, last_start.get("method"))
    given_up = [
        tuple(body.scalars.get(key) for key in ("rung", "method", "outcome"))
        for body in transitions
        if body.state == "escalated"
    ]
    tried_before = [(a.rung, a.method, a.outcome) for a in method.tried_before]
    _check_same("the list of rungs given up", tried_before, given_up[-MAX_ATTEMPTS:])
    verified = [(body.model, body.scalars) for body in transitions if body.state == "verified"]
    model, scalars = verified[-1] if verified else (None, {})
    _check_same("the verified model", predicate.models.after, model)
    _check_same("the number of rounds", method.rounds, scalars.get("rounds"))
    for plan in _bodies(rows, PlanBody):
        if (plan.plan, plan.rung, plan.method) == (method.plan, method.rung, method.name):
            parameters = {key: method.parameters.get(key) for key in plan.settings}
            _check_same("a parameter of the method", parameters, plan.settings)
            return
    raise TrustError("the ledger contradicts the receipt: it has no such plan")


def _check_models(predicate: Predicate, rows: Sequence[Row]) -> None:
    before, models = predicate.models.before, _bodies(rows, ModelBody)
    parents = [body.parent for body in models if body.model == predicate.models.after]
    _check_same("the model before", before, parents[-1] if parents else None)
    if not any(body.model == before and body.status == "retired" for body in models):
        raise TrustError("the ledger contradicts the receipt: the model before is not retired")


def _check_destroyed(predicate: Predicate, rows: Sequence[Row]) -> None:
    items, recorded, head = list[DestroyedItem](), set[str | None](), predicate.ledger
    for row in rows:
        if isinstance(row.document, DestroyedBody):
            items.append(DestroyedItem(row.document.what, row.document.digest, row.at))
            recorded.add(row.document.backups_until)
            head = row.head
    listed = list(summarise_destroyed(items))
    _check_same("the list of what was destroyed", list(predicate.destroyed), listed)
    stated: set[str | None] = {remaining.until for remaining in predicate.remaining}
    _check_same("the end of backups", stated or {None}, recorded or {None})
    if head != predicate.ledger:
        raise TrustError("the receipt's head of the ledger is not the row before the receipt's")


def _check_issued(predicate: Predicate, digest: str, rows: Sequence[Row]) -> None:
    issued = [row for row in rows if row.kind == "receipt"]
    if not issued:
        raise TrustError("the ledger does not name this receipt: it was never issued, or cut off")
    body = _bodies(issued, ReceiptBody)[0]
    if len(issued) > 1 or body.receipt != digest:
        raise TrustError("the ledger names another receipt for this request")
    _check_same("the receipt's row", _ledger_row(predicate, digest), body)
    _check_same("the time of completion", predicate.request.completed, issued[0].at)


def _ledger_row(predicate: Predicate, digest: str) -> ReceiptBody:
    return ReceiptBody(
        request=predicate.request.digest,
        receipt=digest,
        before=predicate.models.before,
        after=predicate.models.after,
        rung=predicate.method.rung,
        method=predicate.method.name,
        forgotten=predicate.verification.forgotten,
        useful=predicate.verification.useful,
    )


def _bodies(rows: Sequence[Row], kind: type[B]) -> list[B]:
    return [row.document for row in rows if isinstance(row.document, kind)]


def _check_same(what: str, stated: object, recorded: object) -> None:
    if stated != recorded:
        raise TrustError(f"the ledger contradicts the receipt: {what} differs")


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "nobody"
