"""Consistency of a home: journal, ledger, registry and receipts must agree before any work.

Each may be sound by itself and still be older than the others: restored alone from a backup,
replaced, or altered where no hash looks. A kill between two of them leaves the later one without
its last part; that is completed later, and no contradiction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from secede.erasure.canonical_json import read_bounded
from secede.erasure.documents import (
    MAX_RECEIPT_BYTES,
    DeliveredBody,
    DestroyedBody,
    ExtendedBody,
    Head,
    ModelBody,
    ReceiptBody,
    Request,
    RequestBody,
    Row,
    TransitionBody,
    due_date,
)
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.storage import (
    PROMOTED,
    Entry,
    Home,
    Journal,
    Ledger,
    ModelRegistry,
    Transition,
    read_transition,
)
from secede.erasure.types import Document, format_time
from secede.errors import ConfigError, TrustError
from secede.text import short_digest

RESTORE = "restore the whole home as it was at one time (docs/erasing.md)"


def check_home(home: Home, journal: Journal, ledger: Ledger, registry: ModelRegistry) -> Head:
    """Return the ledger's head; TrustError at the first contradiction."""
    heads, broken = receipt_heads(home)
    head = ledger.verify(journal.ledger_head(), *heads)
    rows = list(ledger.rows())
    entries = journal.entries()
    for entry in entries:
        path = home.receipt_path(entry.digest)
        if entry.state == PROMOTED and (path in broken or not path.is_file()):
            raise TrustError(
                f"{path} is missing or does not verify, but its erasure was promoted: restore it; "
                "the client and whoever countersigned it have copies"
            )
    _check_journal(journal, entries, rows)
    _check_erased(registry, rows)
    _check_models(home, registry, rows)
    return head


def receipt_heads(home: Home) -> tuple[list[Head], list[Path]]:
    """Return the ledger's heads that a home's receipts name, and the receipts that are invalid."""
    signers, heads, broken = home.signers(), list[Head](), list[Path]()
    for path in sorted(home.receipts.glob("*.json")):
        try:
            data = read_bounded(path, MAX_RECEIPT_BYTES)
            verified = verify_receipt(data, signers.keys, auditors=signers.auditors)
        except (TrustError, ConfigError):
            broken.append(path)
        else:
            heads.append(verified.statement.predicate.ledger)
    return heads, broken


def accepted(entry: Entry, request: Request) -> Iterator[Document]:
    """Yield the ledger's rows of an accepted request, before anything is done for it."""
    yield request_body(entry, request)
    if entry.extended:
        yield ExtendedBody(request=entry.digest, extended_to=format_time(entry.due))


def request_body(entry: Entry, request: Request) -> RequestBody:
    """Return the ledger's row of an accepted request."""
    return RequestBody(
        request=entry.digest,
        client=request.client,
        trigger=request.trigger,
        model=request.model,
        issued=request.issued,
        expires=request.expires,
        due=format_time(due_date(entry.received)),
    )


def transition_body(digest: str, transition: Transition) -> TransitionBody:
    """Return the ledger's row of a transition of the request with this digest."""
    return TransitionBody(
        request=digest,
        number=transition.number,
        state=transition.state,
        model=transition.details.ledger_model,
        scalars=transition.details.scalars(),
    )


def _check_journal(journal: Journal, entries: Sequence[Entry], rows: Sequence[Row]) -> None:
    """Raise unless each row about a request follows from the journal, and is there once."""
    by_digest = {entry.digest: entry for entry in entries}
    expected = dict[tuple[str, int], Document]()
    seen = set[tuple[str, int]]()
    for row in rows:
        body = row.document
        if not isinstance(body, RequestBody | ExtendedBody | TransitionBody):
            continue
        digest, number = body.request, body.number if isinstance(body, TransitionBody) else -1
        entry = by_digest.get(digest)
        if entry is None:
            raise TrustError(
                f"row {row.number} of the ledger is about request {short_digest(digest)}, which is "
                f"not in the journal: {RESTORE}"
            )
        if isinstance(body, ExtendedBody):
            _check_extended(entry, row.number, body)
            continue
        if (digest, -1) not in expected:
            expected[digest, -1] = request_body(entry, journal.request(entry.id))
            for transition in map(read_transition, journal.transitions(entry.id)):
                expected[digest, transition.number] = transition_body(digest, transition)
        if (digest, number) in seen or body != expected.get((digest, number)):
            raise TrustError(
                f"row {row.number} of the ledger contradicts the journal on request {entry.id}: "
                f"one of them was altered; {RESTORE}"
            )
        seen.add((digest, number))


def _check_extended(entry: Entry, number: int, body: ExtendedBody) -> None:
    """Raise unless the journal has extended a request to the row's date, or later."""
    months = range(1, entry.extended + 1)
    if body.extended_to not in {format_time(due_date(entry.received, m)) for m in months}:
        raise TrustError(
            f"row {number} of the ledger extends request {entry.id}, the journal does not: "
            f"one of them was altered; {RESTORE}"
        )


def _check_erased(registry: ModelRegistry, rows: Sequence[Row]) -> None:
    """Raise unless the registry holds every erasure that has a receipt, and none without a row."""
    bodies = [row.document for row in rows]
    clients = {body.request: body.client for body in bodies if isinstance(body, RequestBody)}
    erasures = registry.erasures()
    for body in bodies:
        if isinstance(body, ReceiptBody):
            client = clients.get(body.request)
            if (client, body.after, body.request) not in erasures:
                raise TrustError(
                    f"the ledger says that {client!r} was erased, the registry of models does "
                    f"not: one of them is outdated or altered; {RESTORE}"
                )
    for client, _, request in erasures:
        if clients.get(request) != client:
            raise TrustError(
                f"the registry of models says that {client!r} was erased, the ledger has no "
                f"request for it: it is outdated or another one; {RESTORE}"
            )


def _check_models(home: Home, registry: ModelRegistry, rows: Sequence[Row]) -> None:
    """Raise unless models are registered, retired and carry whom the ledger says."""
    models = {model.digest: model for model in registry.models()}
    erasures = registry.erasures()
    gone = {client for client, _, _ in erasures}
    for row in rows:
        body = row.document
        if isinstance(body, ModelBody):
            model = models.get(body.model)
            if model is None or (body.status == "retired" and model.status != "retired"):
                status = "missing" if model is None else model.status
                raise TrustError(
                    f"model {short_digest(body.model)} is {body.status} by the ledger and "
                    f"{status} in the registry of models: one of them is outdated or altered; "
                    f"{RESTORE}"
                )
        elif isinstance(body, DeliveredBody) and body.model in models:
            lost = {*body.clients} - {*models[body.model].clients} - gone
            _check_carried(body.model, lost)
        elif isinstance(body, DestroyedBody) and body.what == "model-before" and body.digest:
            path = home.model_path(body.digest)
            if path.exists():
                raise TrustError(
                    f"{path} was destroyed by an erasure and is there again, as after a restore: "
                    "delete it"
                )
    for model in models.values():
        parent = models.get(model.parent or "")
        without = {client for client, made, _ in erasures if made == model.digest}
        lost = {*(parent.clients if parent else ())} - without - {*model.clients}
        _check_carried(model.digest, lost)


def _check_carried(model: str, lost: set[str]) -> None:
    if lost:
        raise TrustError(
            f"model {short_digest(model)} carries {min(lost)!r}, the registry of models does not "
            f"say so: it was altered; {RESTORE}"
        )
