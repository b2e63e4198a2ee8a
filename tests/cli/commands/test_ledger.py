from __future__ import annotations

import json
from pathlib import Path

import pytest

from secede.cli.commands.ledger import export, verify
from secede.errors import ConfigError, TrustError

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("name", ["ledger.db", "ledger.jsonl"])
def test_a_ledger_is_verified_in_both_forms(folder: Path, name: str, capsys: Capture) -> None:
    verify(folder / name)
    said = capsys.readouterr().out
    assert f"{name}: valid, 14 rows" in said
    assert "Rows cut off at the end were not looked for" in said
    head = next(line for line in said.splitlines() if line.startswith("head ")).split()[1]
    verify(folder / name, expected=head, json=True)
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "valid": True,
        "number": 14,
        "hash": head.partition(":")[2],
        "heads_compared": 1,
        "invalid_receipts": [],
    }


def test_a_ledger_is_exported_and_not_over_another_file(folder: Path, capsys: Capture) -> None:
    out = folder / "out.jsonl"
    export(folder / "ledger.db", out, json=True)
    assert json.loads(capsys.readouterr().out)["number"] == 14
    assert out.read_bytes() == (folder / "ledger.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="exists and is not replaced"):
        export(folder / "ledger.db", out, json=True)
    with pytest.raises(ConfigError, match="no federation's home"):
        verify(folder, json=True)


def test_a_cut_ledger_and_a_head_that_is_none_are_refused(folder: Path) -> None:
    path = folder / "ledger.jsonl"
    rows = path.read_bytes().splitlines(keepends=True)
    head = f"14:{json.loads(rows[-1])['hash']}"
    path.write_bytes(b"".join(rows[:4]))
    with pytest.raises(TrustError, match="ends at row 4 but had 14"):
        verify(path, expected=head)
    with pytest.raises(ConfigError, match="give NUMBER:HASH"):
        verify(path, expected="six")
