"""A receipt held against its ledger: every row about the erasure must say the same as the receipt.

The ledger must be whole, go on from the head that the receipt names, and name this receipt and no
other for the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secede.erasure.documents.chain import START, Head, Row, walk
from secede.erasure.documents.gone import Gone, listed
from secede.erasure.documents.ledger_rows import Kind
from secede.erasure.documents.receipt import Predicate
from secede.erasure.storage.ledger import rows_of
from secede.errors import TrustError

_STARTS = ("local-step", "server-step")


def check(told: Predicate, digest: str, path: Path) -> Head:
    """Return the head of a ledger that bears the receipt `digest` out; any other raises."""
    head, own = START, list[Row]()
    for row in walk(rows_of(path), told.ledger):
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
    gone = [Gone(row.body["what"], row.body["digest"], row.at) for row in found]
    _same("what was destroyed", list(told.destroyed), list(listed(gone)))
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
