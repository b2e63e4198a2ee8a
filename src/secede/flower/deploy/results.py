"""The result of an erasure, read back from the server's home and verified."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from secede.erasure import (
    MAX_RECEIPT_BYTES,
    PROMOTED,
    Entry,
    Home,
    Journal,
    ModelRegistry,
    read_bounded,
    verify_receipt,
)
from secede.errors import RecordError, RolledBackError
from secede.flower.protocol.nodes import select
from secede.flower.storage.round_log import RoundLog


@dataclass(frozen=True, kw_only=True)
class ErasureResult:
    """An erased client, and the evidence."""

    client: str
    method: str
    rung: str
    model: str  # digest of the model that serves since then
    receipt: str
    page: str
    promoted: str  # when that model went into service

    def as_dict(self) -> dict[str, str]:
        """Return it for JSON."""
        return asdict(self)


def last_request(folder: Path, leaver: str) -> Entry | None:
    """Return the last request to erase `leaver`, None if there is none."""
    requests = _requests(folder, leaver)
    return requests[-1] if requests else None


def verified_result(folder: Path, leaver: str) -> ErasureResult:
    """Return the result of erasing `leaver`, with its receipt verified against the ledger."""
    entry = last_request(folder, leaver)
    if entry is None:
        raise RecordError(f"{folder} has no request to erase {leaver}")
    if entry.state != PROMOTED:
        raise RolledBackError(f"{entry.client} was not erased: {entry.state}")
    return _verified(Home(folder), entry)


def earlier_result(folder: Path, leaver: str) -> ErasureResult | None:
    """Return the verified result if `leaver` is erased; None if not, or if it takes part again."""
    promoted = [entry for entry in _requests(folder, leaver) if entry.state == PROMOTED]
    if not promoted:
        return None
    home = Home(folder)
    with ModelRegistry(home.registry, read_only=True) as registry:
        is_erased = promoted[-1].client in registry.erased_clients()
    return _verified(home, promoted[-1]) if is_erased else None


def _requests(folder: Path, leaver: str) -> list[Entry]:
    path = Home(folder).journal
    clients = RoundLog(folder / "rounds.jsonl").clients()
    if not path.exists() or not clients:
        return []
    name = select(leaver, clients).name
    with Journal(path, read_only=True) as journal:
        return [entry for entry in journal.entries() if entry.client == name]


def _verified(home: Home, entry: Entry) -> ErasureResult:
    path, signers = home.receipt_path(entry.digest), home.signers()
    data = read_bounded(path, MAX_RECEIPT_BYTES)
    receipt = verify_receipt(data, signers.keys, auditors=signers.auditors, ledger=home.ledger)
    predicate = receipt.statement.predicate
    return ErasureResult(
        client=predicate.request.client,
        method=predicate.method.name,
        rung=predicate.method.rung,
        model=receipt.statement.subject[0].digest.sha256,
        receipt=str(path),
        page=str(path.with_suffix(".html")),
        promoted=predicate.request.promoted,
    )
