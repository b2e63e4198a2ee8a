"""P values corrected for how many are asked at once: Holm 1979, Benjamini and Hochberg 1995."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from secede.audit.ensembles.margins import Floats
from secede.errors import DataError


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p values: below a level, *no* finding is false but with that chance."""
    p = _checked(p_values)
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    return _in_place(raised, order)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p values: below a level, at most that share of findings is false."""
    p = _checked(p_values)
    order = np.argsort(p, kind="stable")
    raised = len(p) / np.arange(1, len(p) + 1) * p[order]
    return _in_place(np.minimum.accumulate(raised[::-1])[::-1], order)


def _in_place(raised: Floats, order: NDArray[np.int64]) -> list[float]:
    adjusted = np.empty(len(raised))
    adjusted[order] = np.minimum(raised, 1.0)
    return [float(p) for p in adjusted]


def _checked(p_values: Sequence[float]) -> Floats:
    p = np.asarray(p_values, dtype=float)
    if not np.all((p >= 0) & (p <= 1)):
        raise DataError(f"p values {list(p_values)}, expected numbers from 0 to 1")
    return p
