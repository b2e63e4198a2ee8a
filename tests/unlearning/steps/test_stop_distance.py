from __future__ import annotations

import pytest

from secede.unlearning.method import Candidate
from secede.unlearning.steps.stop_distance import GRID, choose, grid_ahead, target_accuracy


def test_the_grid_is_the_papers_interval_in_plain_units() -> None:
    assert GRID[0] ** 2 == pytest.approx(2)
    assert GRID[-1] ** 2 == pytest.approx(6)
    assert list(GRID) == sorted(GRID)


def test_the_target_is_an_eighth_of_the_reference_but_never_below_chance() -> None:
    assert target_accuracy(0.96, 100) == pytest.approx(0.12)
    assert target_accuracy(0.96, 2) == 0.5


def test_the_smallest_tau_that_forgets_is_chosen() -> None:
    points = [Candidate(1.4, 5, 0.30), Candidate(1.6, 6, 0.09), Candidate(1.7, 7, 0.02)]
    assert choose(points, 0.1) == 1
    assert choose(points, 0.01) is None
    assert choose([], 0.5) is None


def test_values_that_the_start_has_passed_are_left_out() -> None:
    assert grid_ahead(0.4) == GRID
    assert grid_ahead(1.6) == GRID[2:]


def test_a_start_beyond_most_of_the_grid_moves_the_whole_grid() -> None:
    # 3 squared is 9; the grid spans 4 squared units beyond the start.
    moved = grid_ahead(3.0)
    assert moved[0] ** 2 == pytest.approx(9.5)
    assert moved[-1] ** 2 == pytest.approx(13)
    assert min(moved) > 3.0
