"""What came of an erasure, read back from the server's home and verified."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from secede.erasure.canonical_json import read_file
from secede.erasure.documents.receipt import MAX_RECEIPT_BYTES
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Entry
from secede.erasure.storage.model_registry import ModelRegistry
from secede.erasure.storage.transition_details import PROMOTED
from secede.errors import RecordError, RolledBackError
from secede.flower.protocol.nodes import select
from secede.flower.storage.round_log import RoundLog


@dataclass(frozen=True, kw_only=True)
class ErasureResult:
    """A client that was erased, and the evidence."""

    client: str
    method: str
    rung: str
    model: str  # the digest of the one that serves because of it
    receipt: str
    page: str
    promoted: str  # when that model went into service

    def as_dict(self) -> dict[str, str]:
        """Return it for JSON."""
        return asdict(self)


def last_request(folder: Path, leaver: str) -> Entry | None:
    """Return the last request to erase `leaver`, None if there is none."""
    found = _requests(folder, leaver)
    return found[-1] if found else None


def verified_result(folder: Path, leaver: str) -> ErasureResult:
    """Return how the erasure of `leaver` ended; its receipt must hold, the ledger agree."""
    entry = last_request(folder, leaver)
    if entry is None:
        raise RecordError(f"{folder} knows of no request to erase {leaver}")
    if entry.state != PROMOTED:
        raise RolledBackError(f"{entry.client} was not erased: {entry.state}")
    return _held(Home(folder), entry)


def earlier_result(folder: Path, leaver: str) -> ErasureResult | None:
    """Return how `leaver` was erased, None if it is not, or takes part again since."""
    done = [entry for entry in _requests(folder, leaver) if entry.state == PROMOTED]
    if not done:
        return None
    home = Home(folder)
    with ModelRegistry(home.registry, read_only=True) as registry:
        gone = done[-1].client in registry.erased_clients()
    return _held(home, done[-1]) if gone else None


def _requests(folder: Path, leaver: str) -> list[Entry]:
    path = Home(folder).journal
    known = RoundLog(folder / "rounds.jsonl").clients()
    if not path.exists() or not known:
        return []
    name = select(leaver, known).name
    with Journal(path, read_only=True) as journal:
        return [entry for entry in journal.entries() if entry.client == name]


def _held(home: Home, entry: Entry) -> ErasureResult:
    path, signers = home.receipt_path(entry.digest), home.signers()
    data = read_file(path, MAX_RECEIPT_BYTES)
    held = verify_receipt(data, signers.keys, auditors=signers.auditors, ledger=home.ledger)
    told = held.statement.predicate
    return ErasureResult(
        client=told.request.client,
        method=told.method.name,
        rung=told.method.rung,
        model=held.statement.subject[0].digest.sha256,
        receipt=str(path),
        page=str(path.with_suffix(".html")),
        promoted=told.request.promoted,
    )
