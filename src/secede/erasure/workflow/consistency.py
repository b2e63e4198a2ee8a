"""Consistency of a home: journal, ledger, registry and files must agree before any work.

Each may be sound by itself and still be older than the others: restored alone from a backup,
replaced, or altered where no hash looks. So what one of them says, the others must say too, in both
directions. A kill between two of them leaves the later one without its last part; that is completed
later, and no contradiction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from secede.erasure.canonical_json import read_bounded
from secede.erasure.documents import (
    MAX_RECEIPT_BYTES,
    START,
    AcknowledgedBody,
    BodyOfRequest,
    ExtendedBody,
    Head,
    ReceiptBody,
    Request,
    RequestBody,
    Row,
    TransitionBody,
    due_date,
)
from secede.erasure.receipts import Verified, verify_receipt
from secede.erasure.storage import (
    PROMOTED,
    RECEIVED,
    RESTORE,
    TERMINAL,
    VERIFIED,
    Entry,
    Home,
    Journal,
    Ledger,
    ModelRegistry,
    PlanDetails,
    PromotionDetails,
    Transition,
    read_transition,
)
from secede.erasure.types import Document, format_time
from secede.erasure.workflow.federation_binding import bind_keys, check_bound, check_signer
from secede.erasure.workflow.model_consistency import check_files, check_registry
from secede.errors import ConfigError, TrustError
from secede.text import short_digest

_MAX_READS = 5  # until nothing was written meanwhile


def check_home(
    home: Home,
    journal: Journal,
    ledger: Ledger,
    registry: ModelRegistry,
    *,
    check_federation: bool = True,
) -> Head:
    """Return the ledger's head; TrustError at the first contradiction.

    `check_federation` is False where federation.json and keys are about to be bound anew.
    """
    before = _read_journal(journal)
    for _ in range(_MAX_READS):  # another process may write while this one reads
        receipts, broken = _read_receipts(home)
        last = journal.ledger_head()
        heads = [receipt.statement.predicate.ledger for receipt in receipts.values()]
        head = ledger.verify(last, *heads)
        rows = list(ledger.rows())
        entries, ways = _read_journal(journal)
        if (entries, ways) == before:
            break
        before = entries, ways
    first_rows = {entry.digest: list(accepted(journal, entry)) for entry in entries}
    for entry in entries:
        path = home.receipt_path(entry.digest)
        if entry.state == PROMOTED and (path in broken or not path.is_file()):
            raise TrustError(
                f"{path} is missing or does not verify, but its erasure was promoted: restore it; "
                "the client and whoever countersigned it have copies"
            )
    _check_rows(entries, first_rows, ways, rows)
    if last is None and head != START:
        raise TrustError(
            f"the journal does not name the end of the ledger, row {head.number}: it was altered; "
            f"{RESTORE}"
        )
    _check_complete(entries, ways, rows)
    for entry in entries:
        _check_entry(entry, journal.request(entry.id), ways[entry.digest])
        check_signer(home, entry, journal.signing_key(entry.id), rows)
        for transition in ways[entry.digest]:
            if isinstance(transition.details, PlanDetails):
                home.load_plan(transition.details.plan)
    _check_receipts(home, entries, ways, rows, receipts)
    check_registry(home, registry, entries, rows)
    if check_federation:
        check_bound(home, rows)
    check_files(home, registry, rows)
    return head


def receipt_heads(home: Home) -> tuple[list[Head], list[Path]]:
    """Return the ledger's heads that a home's receipts name, and the receipts that are invalid."""
    receipts, broken = _read_receipts(home)
    return [receipt.statement.predicate.ledger for receipt in receipts.values()], broken


def _read_journal(journal: Journal) -> tuple[list[Entry], dict[str, list[Transition]]]:
    """Return all requests, and the transitions of each by its digest."""
    entries = journal.entries()
    ways = {
        entry.digest: [read_transition(row) for row in journal.transitions(entry.id)]
        for entry in entries
    }
    return entries, ways


def _read_receipts(home: Home) -> tuple[dict[Path, Verified], list[Path]]:
    """Return a home's receipts by their files, and the files that are none or invalid."""
    signers, receipts, broken = home.signers(), dict[Path, Verified](), list[Path]()
    for path in sorted(home.receipts.glob("*.json")):
        try:
            data = read_bounded(path, MAX_RECEIPT_BYTES)
            receipts[path] = verify_receipt(data, signers.keys, auditors=signers.auditors)
        except (TrustError, ConfigError):
            broken.append(path)
    return receipts, broken


def accepted(journal: Journal, entry: Entry) -> Iterator[Document]:
    """Yield the ledger's rows of an accepted request, before anything is done for it."""
    request = journal.request(entry.id)
    yield RequestBody(
        request=entry.digest,
        client=request.client,
        key=journal.signing_key(entry.id),
        trigger=request.trigger,
        model=request.model,
        issued=request.issued,
        expires=request.expires,
        due=format_time(due_date(entry.received)),
    )
    if entry.acknowledged is not None:
        yield AcknowledgedBody(request=entry.digest, acknowledged=format_time(entry.acknowledged))
    if entry.extended:
        yield ExtendedBody(request=entry.digest, extended_to=format_time(entry.due))


def transition_body(digest: str, transition: Transition) -> TransitionBody:
    """Return the ledger's row of a transition of the request with this digest."""
    return TransitionBody(
        request=digest,
        number=transition.number,
        state=transition.state,
        model=transition.details.ledger_model,
        scalars=transition.details.scalars(),
    )


def complete(home: Home, journal: Journal, ledger: Ledger, now: datetime) -> None:
    """Append keys that came since, and the last row of requests whose end a kill left out."""
    rows = list(ledger.rows())
    bind_keys(home, ledger, rows, now, replace=False)
    written = _numbers(rows)
    for entry in journal.entries():
        if entry.open:
            continue
        last = read_transition(journal.transitions(entry.id)[-1])
        if (entry.digest, last.number) not in written:
            ledger.append_once(transition_body(entry.digest, last), last.at)


def _numbers(rows: Sequence[Row]) -> set[tuple[str, int]]:
    """Return the transitions that the ledger has, by the request's digest and their number."""
    bodies = [row.document for row in rows]
    return {(body.request, body.number) for body in bodies if isinstance(body, TransitionBody)}


def _check_rows(
    entries: Sequence[Entry],
    first_rows: Mapping[str, Sequence[Document]],
    ways: Mapping[str, Sequence[Transition]],
    rows: Sequence[Row],
) -> None:
    """Raise unless each row about a request follows from the journal, and is there once."""
    by_digest = {entry.digest: entry for entry in entries}
    seen = set[tuple[type[Document], str, int]]()
    for row in rows:
        body = row.document
        if not isinstance(body, BodyOfRequest):
            continue
        entry = by_digest.get(body.request)
        if entry is None:
            raise TrustError(
                f"row {row.number} of the ledger is about request {short_digest(body.request)}, "
                f"which is not in the journal: {RESTORE}"
            )
        if isinstance(body, ExtendedBody):
            _check_extended(entry, row.number, body)
        if not isinstance(body, RequestBody | AcknowledgedBody | TransitionBody):
            continue
        expected, number = first_rows[entry.digest], -1
        if isinstance(body, TransitionBody):
            number = body.number
            way = ways[entry.digest][number : number + 1]
            expected = [transition_body(entry.digest, transition) for transition in way]
        if (type(body), entry.digest, number) in seen or body not in expected:
            raise TrustError(
                f"row {row.number} of the ledger contradicts the journal on request {entry.id}: "
                f"one of them was altered; {RESTORE}"
            )
        seen.add((type(body), entry.digest, number))


def _check_complete(
    entries: Sequence[Entry], ways: Mapping[str, Sequence[Transition]], rows: Sequence[Row]
) -> None:
    """Raise unless the ledger has all that the journal has, but for the end of one request.

    What is written last may be missing after a kill; a request that nobody worked on yet may have
    no row at all.
    """
    accepted_rows = {r.document.request for r in rows if isinstance(r.document, RequestBody)}
    written, unfinished = _numbers(rows), 0
    for entry in entries:
        if entry.state == RECEIVED:
            continue
        *before, last = (
            (entry.digest, transition.number) in written for transition in ways[entry.digest]
        )
        unfinished += not last
        if entry.digest not in accepted_rows or not all(before) or unfinished > 1:
            raise TrustError(
                f"the ledger lacks rows of request {entry.id}, which the journal has as "
                f"{entry.state}: they were cut off; {RESTORE}"
            )


def _check_entry(entry: Entry, request: Request, way: Sequence[Transition]) -> None:
    """Raise unless a request's line in the journal says what its parts say."""
    expected = {
        "client": (entry.client, request.client),
        "date of receipt": (entry.received, way[0].at),
        "due date": (entry.due, due_date(entry.received, entry.extended)),
        "status": (entry.open, entry.state not in TERMINAL),
    }
    for name, (said, follows) in expected.items():
        if said != follows:
            raise TrustError(
                f"the journal contradicts itself on the {name} of request {entry.id}: it was "
                f"altered; {RESTORE}"
            )


def _check_extended(entry: Entry, number: int, body: ExtendedBody) -> None:
    """Raise unless the journal has extended a request to the row's date, or later."""
    months = range(1, entry.extended + 1)
    if body.extended_to not in {format_time(due_date(entry.received, m)) for m in months}:
        raise TrustError(
            f"row {number} of the ledger extends request {entry.id}, the journal does not: "
            f"one of them was altered; {RESTORE}"
        )


def _check_receipts(
    home: Home,
    entries: Sequence[Entry],
    ways: Mapping[str, Sequence[Transition]],
    rows: Sequence[Row],
    receipts: Mapping[Path, Verified],
) -> None:
    """Raise unless rows, files and journal name the same receipts, one for each erasure."""
    issued = dict[str, ReceiptBody]()
    states = {entry.digest: entry.state for entry in entries}
    for row in rows:
        if isinstance(body := row.document, ReceiptBody):
            if body.request in issued or states[body.request] not in (VERIFIED, PROMOTED):
                raise TrustError(
                    f"row {row.number} of the ledger names a receipt that the journal does not "
                    f"have: one of them was altered; {RESTORE}"
                )
            issued[body.request] = body
    for path, receipt in receipts.items():
        if issued.get(receipt.statement.predicate.request.digest) != receipt.ledger_row():
            raise TrustError(
                f"{path} is a valid receipt that the ledger does not name: its rows were cut off "
                f"or replaced, or the file is another federation's; {RESTORE}"
            )
    for entry in entries:
        details = ways[entry.digest][-1].details
        if not isinstance(details, PromotionDetails):
            continue
        named, path = issued.get(entry.digest), home.receipt_path(entry.digest)
        receipt, stated = receipts[path], receipts[path].statement.predicate.request
        if named is None or not named.receipt == receipt.digest == details.receipt:
            raise TrustError(
                f"{path} is not the receipt of request {entry.id} that journal and ledger name: "
                f"one of them was altered; {RESTORE}"
            )
        dates = (entry.received, entry.acknowledged, entry.due if entry.extended else None)
        said = tuple(None if date is None else format_time(date) for date in dates)
        if said != (stated.received, stated.acknowledged, stated.extended_to):
            raise TrustError(
                f"the journal contradicts the receipt {path} on a date of request {entry.id}: it "
                f"was altered; {RESTORE}"
            )
