"""The receipt of an erasure: a statement in a DSSE envelope, signed by the server.

The leaver or an auditor countersigns it. Anybody who has the public keys verifies it offline,
with the model's digest and the ledger beside it where they have those. Nobody else's signature
counts: one of another client is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from secede.erasure.canonical_json import parse
from secede.erasure.documents.ledger_rows import START, Head, Kind, Row
from secede.erasure.documents.receipt import (
    MAX_RECEIPT_BYTES,
    RECEIPT_TYPE,
    SERVER,
    DestroyedItem,
    Models,
    Predicate,
    Statement,
    summarise_destroyed,
)
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import PrivateKey, PublicKey
from secede.erasure.storage.ledger import rows_of, walk_chain
from secede.erasure.types import describe_errors
from secede.errors import TrustError
from secede.text import short_digest

_STARTS = ("local-step", "server-step")


def check_against_ledger(told: Predicate, digest: str, path: Path) -> Head:
    """Return the head of a ledger that bears the receipt `digest` out; any other raises."""
    head, own = START, list[Row]()
    for row in walk_chain(rows_of(path), told.ledger):
        head = row.head
        if row.body.get("request") == told.request.digest or row.kind == "model":
            own.append(row)
    before = [row for row in own if row.number <= told.ledger.number]
    _check_request(told, before)
    _check_way(told, before)
    _check_models(told, before)
    _check_destroyed(told, own)
    _check_receipt(told, digest, own)
    return head


def _check_request(told: Predicate, rows: Sequence[Row]) -> None:
    asked = _bodies(rows, "request")
    if not asked or asked[0]["client"] != told.request.client:
        raise TrustError("the ledger is whole, but the receipt's request is not in it")
    for key in ("trigger", "issued", "due"):
        _same(f"the request's {key}", getattr(told.request, key), asked[0][key])
    later = [body["extended_to"] for body in _bodies(rows, "extended")]
    _same("the later date", told.request.extended_to, later[-1] if later else None)


def _check_way(told: Predicate, rows: Sequence[Row]) -> None:
    """Compare rung, method, rungs given up and answers with the transitions and plans."""
    method, moved = told.method, _bodies(rows, "transition")
    starts = [body["scalars"] for body in moved if body["state"] in _STARTS]
    last = starts[-1] if starts else {}
    _same("the rung", method.rung, last.get("rung"))
    _same("the method", method.name, last.get("method"))
    tried = [
        tuple(body["scalars"].get(key) for key in ("rung", "method", "outcome"))
        for body in moved
        if body["state"] == "escalated"
    ]
    stated = [(a.rung, a.method, a.outcome) for a in method.tried_before]
    _same("the rungs given up", stated, tried[-16:])
    verified = [body for body in moved if body["state"] == "verified"]
    found = verified[-1] if verified else {"model": None, "scalars": {}}
    _same("the verified model", told.models.after, found["model"])
    _same("the rounds", method.rounds, found["scalars"].get("rounds"))
    for plan in _bodies(rows, "plan"):
        named = (plan["plan"], plan["rung"], plan["method"])
        if named == (method.plan, method.rung, method.name):
            stated_settings = {key: method.parameters.get(key) for key in plan["settings"]}
            _same("the method's parameters", stated_settings, plan["settings"])
            return
    raise TrustError("the ledger contradicts the receipt: it has no such plan")


def _check_models(told: Predicate, rows: Sequence[Row]) -> None:
    models = _bodies(rows, "model")
    made = [m["parent"] for m in models if m["model"] == told.models.after]
    _same("the model before", told.models.before, made[-1] if made else None)
    if not any(m["model"] == told.models.before and m["status"] == "retired" for m in models):
        raise TrustError("the ledger contradicts the receipt: the model before is not retired")


def _check_destroyed(told: Predicate, rows: Sequence[Row]) -> None:
    found = [row for row in rows if row.kind == "destroyed"]
    gone = [DestroyedItem(row.body["what"], row.body["digest"], row.at) for row in found]
    _same("what was destroyed", list(told.destroyed), list(summarise_destroyed(gone)))
    kept = {row.body["backups_until"] for row in found}
    _same("the end of backups", {left.until for left in told.remaining} or {None}, kept or {None})
    if found and found[-1].head != told.ledger:
        raise TrustError("the receipt's head of the ledger is not the row before the receipt's")


def _check_receipt(told: Predicate, digest: str, rows: Sequence[Row]) -> None:
    issued = [row for row in rows if row.kind == "receipt"]
    if not issued:
        raise TrustError("the ledger does not name this receipt: it was never issued, or cut off")
    if len(issued) > 1 or issued[0].body["receipt"] != digest:
        raise TrustError("the ledger names another receipt for this request")
    (row,), answers = issued, told.verification
    stated = {
        "before": told.models.before,
        "after": told.models.after,
        "rung": told.method.rung,
        "method": told.method.name,
        "forgotten": answers.forgotten,
        "useful": answers.useful,
    }
    _same("its row", stated, {key: row.body[key] for key in stated})
    _same("when it was completed", told.request.completed, row.at)


def _bodies(rows: Sequence[Row], kind: Kind) -> list[dict[str, Any]]:
    return [row.body for row in rows if row.kind == kind]


def _same(what: str, stated: object, found: object) -> None:
    if stated != found:
        raise TrustError(f"the ledger contradicts the receipt: {what} differs")


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A receipt that holds, who signed it, and what it was compared with."""

    statement: Statement
    digest: str  # of what was signed
    server: str
    countersigned_by: tuple[str, ...]
    model_checked: bool
    ledger: Head | None  # how far the ledger goes that it was compared with


def sign_receipt(statement: Statement, server_key: PrivateKey) -> bytes:
    """Return the receipt, signed by the server."""
    return dsse.sign(statement.payload(), RECEIPT_TYPE, server_key)


def countersign_receipt(data: bytes, key: PrivateKey) -> bytes:
    """Return the receipt with one more signature; `verify` says whether that one counts."""
    parse_statement(dsse.unverified(data, RECEIPT_TYPE, limit=MAX_RECEIPT_BYTES))
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
    """Return the receipt if the server signed it, and nobody but the leaver and `auditors` too.

    With `model_digest`, the model must be the one that it is about; with `ledger`, that one must
    be whole and say the same. All whom `countersigned_by` names must have signed it.
    """
    if server not in keys:
        raise TrustError(f"no public key of the server {server!r} among {_list(keys)}")
    auditors = auditors or {}
    if both := auditors.keys() & keys.keys():
        raise TrustError(f"{min(both)!r} is a client or the server, and an auditor: which one?")
    known = {**auditors, **keys}
    payload, signers = dsse.verify(data, RECEIPT_TYPE, known, limit=MAX_RECEIPT_BYTES)
    others = tuple(name for name in signers if name != server)
    if server not in signers:
        raise TrustError(f"the receipt is signed by {_list(signers)}, not by the server {server!r}")
    statement, digest = parse_statement(payload), hashlib.sha256(payload).hexdigest()
    entitled = {statement.predicate.request.client, *auditors}
    if strangers := set(others) - entitled:
        raise TrustError(
            f"{min(strangers)!r} signed the receipt too, who is neither the client that left nor "
            "an auditor here: its signature counts for nothing and must not be there"
        )
    if missing := set(countersigned_by) - set(others):
        raise TrustError(
            f"the receipt is not countersigned by {_list(sorted(missing))}, but by {_list(others)}"
        )
    if model_digest is not None:
        _check_model(statement.predicate.models, model_digest)
    return Verified(
        statement=statement,
        digest=digest,
        server=server,
        countersigned_by=others,
        model_checked=model_digest is not None,
        ledger=None
        if ledger is None
        else check_against_ledger(statement.predicate, digest, ledger),
    )


def unverified_statement(data: bytes) -> Statement:
    """Return what a receipt says, without looking at its signatures."""
    return parse_statement(dsse.unverified(data, RECEIPT_TYPE, limit=MAX_RECEIPT_BYTES))


def parse_statement(payload: bytes) -> Statement:
    """Return the statement in an envelope's payload; nothing is said about who signed it."""
    parse(payload, MAX_RECEIPT_BYTES)
    try:
        statement = Statement.model_validate_json(payload)
    except ValidationError as error:
        raise TrustError(f"not a receipt of an erasure: {describe_errors(error)}") from None
    if statement.payload() != payload:
        raise TrustError("the receipt is not written in its one canonical form")
    return statement


def _check_model(models: Models, found: str) -> None:
    if found == models.before:
        raise TrustError("this is the model from before the erasure, not the erased one")
    if found != models.after:
        raise TrustError(
            f"the receipt is about model {short_digest(models.after)}, this one is "
            f"{short_digest(found)}: it is another model, or it was altered"
        )


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "nobody"
