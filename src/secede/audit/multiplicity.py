"""Correct p values for how many questions were asked together.

Holm's bound the chance of one false finding among all, whatever depends on what; Benjamini and
Hochberg's bound the expected share of false ones among the findings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from secede.errors import DataError


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's adjusted p values (1979), in the order given."""
    count = len(p_values)
    order = _by_size(p_values)
    stepped = [(count - place) * p_values[index] for place, index in enumerate(order)]
    return _in_place(order, accumulate(stepped, max))


def benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Benjamini and Hochberg's adjusted p values (1995), in the order given."""
    count = len(p_values)
    order = _by_size(p_values)[::-1]
    stepped = [count / (count - place) * p_values[index] for place, index in enumerate(order)]
    return _in_place(order, accumulate(stepped, min))


def _by_size(p_values: Sequence[float]) -> list[int]:
    for value in p_values:
        if not (math.isfinite(value) and 0 <= value <= 1):
            raise DataError(f"a p value is {value}, expected a number from 0 to 1")
    return sorted(range(len(p_values)), key=lambda index: p_values[index])


def _in_place(order: Sequence[int], values: accumulate[float]) -> tuple[float, ...]:
    adjusted = dict(zip(order, (min(value, 1.0) for value in values), strict=True))
    return tuple(adjusted[index] for index in range(len(order)))
