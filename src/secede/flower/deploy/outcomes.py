"""What came of an erasure, read back from the server's home and verified."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from secede.erasure import receipt as receipts
from secede.erasure.canonical import read
from secede.erasure.entries import Entry
from secede.erasure.home import Home
from secede.erasure.journal import Journal
from secede.erasure.lineage import Lineage
from secede.errors import RecordError, RolledBackError
from secede.flower.log import Log
from secede.flower.nodes import select


@dataclass(frozen=True, kw_only=True)
class Erased:
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


def request(folder: Path, leaver: str) -> Entry | None:
    """Return the last request to erase `leaver`, None if there is none."""
    path = Home(folder).journal
    known = Log(folder / "rounds.jsonl").clients()
    if not path.exists() or not known:
        return None
    name = select(leaver, known).name
    with Journal(path, read_only=True) as journal:
        found = [listed.entry for listed in journal.requests(datetime.now(UTC))]
    return next((entry for entry in reversed(found) if entry.client == name), None)


def verified(folder: Path, leaver: str) -> Erased:
    """Return how the erasure of `leaver` ended; its receipt must hold, the ledger agree."""
    home, entry = Home(folder), request(folder, leaver)
    if entry is None:
        raise RecordError(f"{folder} knows of no request to erase {leaver}")
    if entry.state != "promoted":
        raise RolledBackError(f"{entry.client} was not erased: {entry.state}")
    path = home.receipt(entry.digest)
    held = receipts.verify(read(path, receipts.LIMIT), home.keyring(), ledger=home.ledger)
    told = held.statement.predicate
    return Erased(
        client=told.request.client,
        method=told.method.name,
        rung=told.method.rung,
        model=held.statement.subject[0].digest.sha256,
        receipt=str(path),
        page=str(path.with_suffix(".html")),
        promoted=told.request.promoted,
    )


def already(folder: Path, leaver: str) -> Erased | None:
    """Return how `leaver` was erased, None if it is not, or takes part again since."""
    entry = request(folder, leaver)
    if entry is None or entry.state != "promoted":
        return None
    with Lineage(Home(folder).registry, read_only=True) as registry:
        gone = entry.client in registry.erased()
    return verified(folder, leaver) if gone else None
