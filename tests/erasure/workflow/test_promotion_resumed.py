"""An erasure that was cut short at its end, and resumed: one receipt, the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.erasure import small
from harness.erasure.small import later, rows
from secede import files
from secede.erasure.documents.receipt import Software
from secede.erasure.receipts.verify import countersign_receipt, verify_receipt
from secede.erasure.signing.keys import load_private_key
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal_entries import Entry
from secede.erasure.storage.transition_details import PromotionDetails, TransitionDetails
from secede.erasure.workflow.session import ErasureSession
from secede.simulation.backend import SimulatedBackend


class Elsewhere(SimulatedBackend):
    """The same federation, computed by another version."""

    def software(self) -> Software:
        return Software(versions={"secede": "9.9"}, environment={"device": "cpu"})


def cut_before_promoted(home: Home, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """Receive a request and work on it until its receipt is there and only its end is missing."""
    entry, genuine = small.receive(home), ErasureSession.advance

    def cut(session: ErasureSession, details: TransitionDetails) -> None:
        if isinstance(details, PromotionDetails):
            raise KeyboardInterrupt
        genuine(session, details)

    with monkeypatch.context() as patched:
        patched.setattr(ErasureSession, "advance", cut)
        with pytest.raises(KeyboardInterrupt):
            small.erase(home, entry.id)
    return entry


def test_resumed_elsewhere_the_receipt_is_the_same_and_there_is_one(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = cut_before_promoted(home, monkeypatch)
    path = home.receipt_path(entry.digest)
    first = path.read_bytes()
    small.erase(home, entry.id, ground=Elsewhere(home), now=later(days=3))
    assert path.read_bytes() == first
    assert len(rows(home, "receipt")) == 1
    (computed,) = small.told(home)["software"]
    assert computed["versions"]["torch"] == torch.__version__


def test_both_are_named_if_the_work_went_on_with_other_software(home: Home) -> None:
    entry = small.receive(home)

    def tell(line: str) -> None:
        if line == "guarded":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small.erase(home, entry.id, tell=tell)
    small.erase(home, entry.id, ground=Elsewhere(home))
    here, there = small.told(home)["software"]
    assert here["steps"] == ["local-step", "guarded"]
    assert there["steps"] == ["post-training", "verified"]
    assert there["versions"] == {"secede": "9.9"}


def test_a_kill_between_the_ledger_s_row_and_the_file_makes_the_same_receipt(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, genuine = small.receive(home), files.write_bytes

    def cut(path: Path, content: bytes) -> None:
        if path.parent == home.receipts:
            raise KeyboardInterrupt
        genuine(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_bytes", cut)
        with pytest.raises(KeyboardInterrupt):
            small.erase(home, entry.id)
    (row,) = rows(home, "receipt")
    outcome = small.erase(home, entry.id, now=later(days=45))
    assert outcome.receipt is not None
    found = verify_receipt(outcome.receipt.read_bytes(), home.keyring(), ledger=home.ledger)
    assert found.digest == row.body["receipt"]


def test_a_countersigned_receipt_survives_a_resumed_end(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = cut_before_promoted(home, monkeypatch)
    path = home.receipt_path(entry.digest)
    leaver = load_private_key(home.path / "sites" / "site-0.key")
    path.write_bytes(countersign_receipt(path.read_bytes(), leaver))
    outcome = small.erase(home, entry.id)
    found = verify_receipt(path.read_bytes(), home.keyring(), countersigned_by=["site-0"])
    assert found.countersigned_by == ("site-0",)
    assert outcome.page is not None
    assert "countersigned by <b>site-0</b>" in outcome.page.read_text()
