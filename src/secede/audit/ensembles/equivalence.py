"""Equivalence of scalars: two one-sided tests on paired differences (TOST, Schuirmann 1987).

The difference erased minus retrained, federation by federation, is held against a margin in units
of the null's deviation: that of retrained again minus retrained. Here a small p value is good: the
erased models are equivalent. Losses belong in here as logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from secede.audit.ensembles.margins import Floats

LEVEL = 0.05
MARGIN = 1.0


@dataclass(frozen=True, kw_only=True)
class EquivalenceScore:
    """The mean difference, the margin, and the smallest margin that would have passed."""

    name: str
    difference: float
    null_deviation: float
    margin: float  # in null deviations, as is the next
    smallest_margin: float | None  # None where retraining again changes nothing
    p_value: float
    equivalent: bool


def equivalence_score(
    name: str,
    one: Floats,
    retrained: Floats,
    again: Floats,
    *,
    margin: float = MARGIN,
    level: float = LEVEL,
) -> EquivalenceScore:
    """Return whether one kind is equivalent to the retrained models, within so many deviations.

    Where retraining again changes nothing, only what changes nothing either is equivalent.
    """
    difference = one - retrained
    deviation = float(np.std(again - retrained, ddof=1))
    mean, error = float(difference.mean()), _standard_error(difference)
    p_value = tost_p_value(mean, error, len(difference) - 1, margin * deviation)
    reach = abs(mean) + float(student.isf(level, len(difference) - 1)) * error
    if deviation == 0:
        p_value = 1.0 if difference.any() else 0.0
    return EquivalenceScore(
        name=name,
        difference=mean,
        null_deviation=deviation,
        margin=margin,
        smallest_margin=reach / deviation if deviation > 0 else None,
        p_value=p_value,
        equivalent=p_value < level,
    )


def tost_p_value(mean: float, error: float, degrees: int, margin: float) -> float:
    """Return the larger p value of the tests that the mean is below and above the margin."""
    if error == 0:
        return 0.0 if abs(mean) < margin else 1.0
    return float(student.sf((margin - abs(mean)) / error, degrees))


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))
