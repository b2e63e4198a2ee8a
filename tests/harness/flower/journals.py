"""What an erasure left in its home, for tests to look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.flower.small import Federation
from secede.erasure.documents.receipt import MAX_RECEIPT_BYTES, RECEIPT_TYPE
from secede.erasure.signing import dsse
from secede.erasure.storage.journal import Journal


def home(federation: Federation) -> Path:
    return federation.folder / "home"


def way(federation: Federation, number: int = 1) -> list[str]:
    with Journal(home(federation) / "journal.sqlite", read_only=True) as journal:
        return [transition.state for transition in journal.transitions(number)]


def details(federation: Federation, state: str, number: int = 1) -> list[dict[str, Any]]:
    with Journal(home(federation) / "journal.sqlite", read_only=True) as journal:
        return [dict(t.details) for t in journal.transitions(number) if t.state == state]


def told(path: Path) -> dict[str, Any]:
    payload = dsse.unverified_payload(path.read_bytes(), RECEIPT_TYPE, limit=MAX_RECEIPT_BYTES)
    found: dict[str, Any] = json.loads(payload)["predicate"]
    return found
