"""Grid search for tau, the distance from the leaver's own last state at which the ascent stops.

The paper (Halimi et al. 2022) searches [2, 6] and names no criterion. That interval fits squared
units, so the grid here is sqrt(2) to sqrt(6) in plain L2. The search uses the leaver's data alone:
it takes the smallest tau at which the leaver's accuracy is an eighth of the reference's (or chance,
if that is higher), or the largest tau if none is. One ascent serves the whole grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from secede.unlearning.method import Candidate

SQUARED_GRID = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0)
GRID = tuple(math.sqrt(value) for value in SQUARED_GRID)
TARGET_FRACTION = 1 / 8
MIN_VALUES_AHEAD = 4  # values of the grid that must lie beyond the start


def grid_ahead(start: float) -> tuple[float, ...]:
    """Return the grid's values beyond `start`, the distance at which the ascent begins.

    The paper's interval assumes a start near the leaver's own state. If `start` is beyond most of
    the grid, the whole grid is shifted to begin there.
    """
    values = tuple(value for value in GRID if value > start)
    if len(values) >= MIN_VALUES_AHEAD:
        return values
    return tuple(math.sqrt(start**2 + value - SQUARED_GRID[0]) for value in SQUARED_GRID[1:])


def target_accuracy(reference_accuracy: float, classes: int) -> float:
    """Return the accuracy on the leaver's own samples at which the ascent should stop."""
    return max(TARGET_FRACTION * reference_accuracy, 1 / classes)


def choose(candidates: Sequence[Candidate], target: float) -> int | None:
    """Return the index of the first candidate whose accuracy is at or below `target`, or None."""
    for index, candidate in enumerate(candidates):
        if candidate.accuracy <= target:
            return index
    return None
