from __future__ import annotations

from pathlib import Path

from benchmarks.canaries.kept_rows import KeptRows, Row


def never() -> Row:
    raise AssertionError("measured again")


def test_a_row_is_measured_once_and_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    assert KeptRows(path).row("a", lambda: {"p": 0.5}) == {"p": 0.5}
    with path.open("a") as file:
        file.write('{"key": "b", "p"')  # cut short
    again = KeptRows(path)
    assert again.row("a", never) == {"p": 0.5}
    assert again.row("b", lambda: {"p": 1.0}) == {"p": 1.0}
    assert KeptRows(path).row("b", never) == {"p": 1.0}


def test_without_a_file_rows_are_kept_in_memory() -> None:
    rows = KeptRows()
    assert rows.row("a", lambda: {"p": 0.5}) == rows.row("a", never)
