"""Choosing tau, the distance from the leaver's own last state at which the ascent stops.

The paper searches a grid over [2, 6] without saying by what; the interval fits squared units, so
the grid here is sqrt(2) to sqrt(6) in plain L2. The choice uses the leaver's data alone: the
smallest tau at which its own accuracy has fallen to an eighth of the reference's (or to chance,
where that is higher); the largest if none does. One climb serves the whole grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from secede.unlearning.local_step import Candidate

SQUARED_GRID = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0)
GRID = tuple(math.sqrt(value) for value in SQUARED_GRID)
FRACTION_LEFT = 1 / 8


MINIMUM_AHEAD = 4  # values of the grid that must lie ahead of the start


def grid_ahead(start: float) -> tuple[float, ...]:
    """Return the grid's values beyond `start`, the distance at which the climb begins.

    The paper's interval presumes a start near the leaver's own state. Where most of it is already
    passed, the whole grid is moved so that it begins at the start.
    """
    ahead = tuple(value for value in GRID if value > start)
    if len(ahead) >= MINIMUM_AHEAD:
        return ahead
    return tuple(math.sqrt(start**2 + value - SQUARED_GRID[0]) for value in SQUARED_GRID[1:])


def target_accuracy(reference_accuracy: float, classes: int) -> float:
    """Return the accuracy on its own samples that the leaver aims for."""
    return max(FRACTION_LEFT * reference_accuracy, 1 / classes)


def choose(candidates: Sequence[Candidate], target: float) -> int | None:
    """Return the index of the first candidate at or below `target`, if there is one."""
    for index, candidate in enumerate(candidates):
        if candidate.accuracy <= target:
            return index
    return None
