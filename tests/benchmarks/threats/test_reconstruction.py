from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.threats import reconstruction
from benchmarks.threats.reconstruction import Lab


def first(row: tuple[str, ...], column: int) -> int:
    return int(row[column].partition(" ")[0])


@pytest.mark.parametrize("network", ["mlp", pytest.param("paper-cnn", marks=pytest.mark.slow)])
def test_no_image_can_be_read_in_what_a_step_returns(tmp_path: Path, network: str) -> None:
    rows = [*reconstruction.steps(Lab(tmp_path, network, 40))]
    assert [first(row, 3) for row in rows] == [0] * 5
    assert first(rows[0], 2) > 30  # of a client without limits nearly all of 40
    assert [row[4] for row in rows[2:]] == ["answers, with noise"] * 3  # and not for want of one


def test_pixels_cannot_be_counted(tmp_path: Path) -> None:
    made, alike = reconstruction.counts(Lab(tmp_path, "mlp", 40), range(300, 340))
    assert (first(made, 2), first(made, 3)) == (40, 0)
    assert (first(alike, 2), first(alike, 3)) == (40, 24)
