from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.erasure import papers
from secede.erasure.documents.ledger_rows import Head, ModelBody
from secede.erasure.documents.receipt import Attempt
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.storage.ledger import Ledger, export_ledger
from secede.errors import TrustError

KEYS = papers.publics("server", papers.LEAVER)


def issued(path: Path, *, row: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """Write a ledger and return a receipt that it names, both altered as told."""
    with Ledger(path) as ledger:
        head = papers.fill(ledger, receipts=False)
        data = papers.signed(**{"ledger": head, **changes})
        papers.issue(ledger, verify_receipt(data, KEYS).digest, **(row or {}))
    return data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_a_ledger_that_says_the_same_bears_the_receipt_out(path: Path) -> None:
    data = issued(path)
    with Ledger(path) as ledger:
        head = export_ledger(ledger.rows(), path.with_suffix(".jsonl"))
    for form in (path, path.with_suffix(".jsonl")):
        assert verify_receipt(data, KEYS, ledger=form).ledger == head


def test_a_cut_or_another_ledger_is_refused(path: Path) -> None:
    data = issued(path)
    with Ledger(path) as ledger:
        export_ledger(ledger.rows(), path.with_suffix(".jsonl"))
    rows = path.with_suffix(".jsonl").read_bytes().splitlines(keepends=True)
    cut = path.with_name("cut.jsonl")
    cut.write_bytes(b"".join(rows[:-2]))
    with pytest.raises(TrustError, match="its tail is missing"):
        verify_receipt(data, KEYS, ledger=cut)
    other = papers.signed(ledger=Head(number=len(rows) - 1, hash="7" * 64))
    with pytest.raises(TrustError, match="rewritten, or it is another one"):
        verify_receipt(other, KEYS, ledger=path)


def test_a_ledger_that_lacks_the_receipt_s_row_bears_nothing_out(path: Path) -> None:
    with Ledger(path) as ledger:
        head = papers.fill(ledger, receipts=False)
    with pytest.raises(TrustError, match="does not name this receipt"):
        verify_receipt(papers.signed(ledger=head), KEYS, ledger=path)


def test_a_second_receipt_for_the_same_request_is_refused(path: Path) -> None:
    data = issued(path)
    with Ledger(path) as ledger:
        papers.issue(ledger, "7" * 64)
    with pytest.raises(TrustError, match="names another receipt"):
        verify_receipt(data, KEYS, ledger=path)


def test_a_whole_ledger_without_the_request_is_refused(path: Path) -> None:
    body = ModelBody(model=papers.AFTER, parent=None, run="r", round=1, status="serving")
    with Ledger(path) as ledger:
        head = ledger.append(body, papers.NOW).head
    with pytest.raises(TrustError, match="request is not in it"):
        verify_receipt(papers.signed(ledger=head), KEYS, ledger=path)


def method(**changes: Any) -> dict[str, Any]:
    return {"method": papers.METHOD.model_copy(update=changes)}


def unlike(**changes: Any) -> dict[str, Any]:
    first, second = papers.DESTROYED
    return {"destroyed": (first.model_copy(update=changes), second)}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (method(rung="server-side"), "the rung"),
        (method(name="retrain"), "the method"),
        (method(rounds=3), "the number of rounds"),
        (method(plan="7" * 64), "no such plan"),
        (
            method(parameters={**papers.METHOD.parameters, "radius": 9.0}),
            "a parameter",
        ),
        (
            method(tried_before=(Attempt(rung="local-step", method="m", outcome="silent"),)),
            "the list of rungs given up",
        ),
        (unlike(at="2026-11-15T12:06:59Z"), "what was destroyed"),
        (unlike(digest="7" * 64), "what was destroyed"),
        ({"destroyed": papers.DESTROYED[:1]}, "what was destroyed"),
        ({"remaining": ()}, "the end of backups"),
    ],
)
def test_a_receipt_that_contradicts_its_ledger_is_refused(
    path: Path, changes: dict[str, Any], what: str
) -> None:
    named = changes.get("method", papers.METHOD)
    row = {"rung": named.rung, "method": named.name}
    with pytest.raises(TrustError, match=f"contradicts the receipt: .*{what}"):
        verify_receipt(issued(path, row=row, **changes), KEYS, ledger=path)


@pytest.mark.parametrize(
    "row",
    [
        {"before": "7" * 64},
        {"after": "7" * 64},
        {"rung": "retraining"},
        {"method": "retrain"},
        {"forgotten": "undetermined"},
        {"useful": "no"},
    ],
)
def test_the_receipt_s_row_must_say_the_same(path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(TrustError, match="the receipt's row differs"):
        verify_receipt(issued(path, row=row), KEYS, ledger=path)
