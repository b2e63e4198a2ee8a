from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.canaries import before


def test_a_line_counts_clients_and_pairs_accuracies_by_seed() -> None:
    plain = [{"accuracy": 0.9, "p": []}, {"accuracy": 0.92, "p": []}]
    rows = [{"accuracy": 0.89, "p": [1e-7, 0.5]}, {"accuracy": 0.91, "p": [1e-8, 0.001]}]
    assert before.cells("x", (10, 3), plain, rows) == [
        "x",
        "10 × 3",
        "2.0%",
        "2 of 4",
        "3 of 4",
        "0.5",
        "91.0%",
        "+1.00 (+1.00 to +1.00)",
    ]


@pytest.mark.slow
def test_tables_and_texts_are_trained_and_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["table of 12 unrelated columns, mlp", "texts, bag of words"]
    few = ["--seeds", "1", "--rounds", "1", "--most", "--out", str(tmp_path / "rows.jsonl")]
    before.main(["--data", *names, *few])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == [f"| {name}" for name in names]
    assert all("of 5" in line for line in lines)
