from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.threats import reconstruction
from benchmarks.threats.reconstruction import Lab

NETWORKS = ["mlp", pytest.param("paper-cnn", marks=pytest.mark.slow)]


def first(row: tuple[str, ...], column: int) -> int:
    return int(row[column].partition(" ")[0])


def recognisable(row: tuple[str, ...], column: int) -> int:
    found = re.search(r"(\d+) recognisable", row[column])
    return int(found[1]) if found else 0


@pytest.mark.parametrize("network", NETWORKS)
def test_no_image_can_be_read_in_what_a_step_returns(tmp_path: Path, network: str) -> None:
    rows = [*reconstruction.steps(Lab(tmp_path, network, 40))]
    assert [(first(row, 3), recognisable(row, 3)) for row in rows] == [(0, 0)] * 5
    assert first(rows[0], 2) > 30  # of a client without limits nearly all of 40
    assert ["takes no local step" in row[4] for row in rows] == [False] + [True] * 4


@pytest.mark.parametrize("network", NETWORKS)
def test_traps_and_a_false_share_tell_no_image(tmp_path: Path, network: str) -> None:
    rows = [*reconstruction.traps(Lab(tmp_path, network, 100))]
    assert [(first(row, 3), recognisable(row, 3)) for row in rows] == [(0, 0)] * 2
    assert min(first(row, 2) for row in rows) > 25
    assert ["takes no local step" in row[4] for row in rows] == [True] * 2


def test_made_up_requests_do_not_average_the_noise_away(tmp_path: Path) -> None:
    (row,) = reconstruction.averaged(Lab(tmp_path, "mlp", 100, allows_steps=True), 20)
    assert (first(row, 3), row[4]) == (0, "takes 2 steps in thirty days")


def test_a_step_that_is_allowed_tells_no_image_to_the_last_value(tmp_path: Path) -> None:
    # What can be recognised in it is in docs/threats.md: the reason that none is taken unasked.
    rows = [*reconstruction.traps(Lab(tmp_path, "mlp", 100, allows_steps=True))]
    assert [first(row, 3) for row in rows] == [0, 0]
    assert [row[4] for row in rows] == ["answers, with noise"] * 2
    assert max(recognisable(row, 2) for row in rows) > 40


def test_pixels_cannot_be_counted(tmp_path: Path) -> None:
    (made,) = reconstruction.counts(Lab(tmp_path / "a", "mlp", 40), range(300, 340))
    assert (first(made, 2), first(made, 3)) == (40, 0)
    (alike,) = reconstruction.near(Lab(tmp_path / "b", "mlp", 40), 40)
    assert (first(alike, 2), first(alike, 3)) == (40, 24)


def test_which_models_it_knows_tells_nothing_of_a_hidden_update(tmp_path: Path) -> None:
    (row,) = reconstruction.oracle(Lab(tmp_path, "mlp", 40), 2)
    assert first(row, 3) == 0


def test_one_model_is_counted_with_once_in_whatever_words(tmp_path: Path) -> None:
    (row,) = reconstruction.asked_again(Lab(tmp_path, "mlp", 100), 24)
    assert first(row, 3) == 1
