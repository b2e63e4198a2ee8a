from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.canaries import retrained


def test_rejections_have_their_exact_interval() -> None:
    found = [0.005, 0.03] + [0.5] * 98
    assert retrained.cells("x", found) == [
        "x",
        "100",
        "1.0% (0.0% to 5.4%)",  # Clopper and Pearson, of 1 and 2 in 100
        "2.0% (0.2% to 7.0%)",
        "2.0% (0.2% to 7.0%)",
    ]


@pytest.mark.slow
def test_a_trial_trains_without_the_client_that_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "texts, bag of words"
    few = ["--trials", "2", "--rounds", "1", "--out", str(tmp_path / "rows.jsonl")]
    retrained.main(["--data", name, *few])
    assert f"| {name} | 2 | " in capsys.readouterr().out
