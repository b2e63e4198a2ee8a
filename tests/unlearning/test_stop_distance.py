from __future__ import annotations

import pytest

from secede.unlearning.local import Candidate
from secede.unlearning.stop_distance import GRID, choose, target_accuracy


def test_the_grid_is_the_papers_interval_in_plain_units() -> None:
    assert GRID[0] ** 2 == pytest.approx(2)
    assert GRID[-1] ** 2 == pytest.approx(6)
    assert list(GRID) == sorted(GRID)


def test_the_target_is_an_eighth_of_the_reference_but_never_below_chance() -> None:
    assert target_accuracy(0.96, 100) == pytest.approx(0.12)
    assert target_accuracy(0.96, 2) == 0.5


def test_the_smallest_tau_that_forgets_is_chosen_and_else_the_largest() -> None:
    points = [Candidate(1.4, 5, 0.30), Candidate(1.6, 6, 0.09), Candidate(1.7, 7, 0.02)]
    assert choose(points, 0.1) == 1
    assert choose(points, 0.01) == 2
