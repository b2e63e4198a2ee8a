"""Resampling over models: bootstrap intervals, and the swaps of an exact test between two kinds.

Models are what is drawn anew, never samples: those of one model share its luck. Intervals are
expanded percentiles (Hesterberg 2015, section 3.4: as much wider as Student's t is with so many
models). Where the two models of each federation are
as alike as two retrainings, their labels can be swapped at no change of the distribution: a test
that compares with all swaps is exact (Phipson and Smyth 2010 for the +1 where they are drawn).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import t as student

from secede.audit.ensembles.margins import Floats
from secede.errors import ConfigError

RESAMPLES = 1000
SWAPS = 4999
LEVEL = 0.95
_TIE = 1e-9  # relative: sums in another order are equal to rounding


@dataclass(frozen=True)
class Estimate:
    """A value with its interval over models."""

    value: float
    low: float
    high: float


def draw_counts(models: int, *, seed: int, resamples: int = RESAMPLES) -> NDArray[np.int64]:
    """Return how often each model occurs in each resample (resamples by models)."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(models, np.full(models, 1 / models), size=resamples)


def percentile_estimate(
    value: float,
    draws: Floats,
    *,
    models: int,
    level: float = LEVEL,
    least_deviation: float = 0.0,
) -> Estimate:
    """Return the value with the expanded percentiles of its bootstrap draws.

    Draws that deviate less than `least_deviation` are spread about their mean until they do.
    """
    reach = expanded_reach(models, level)
    centre, deviation = float(draws.mean()), float(draws.std())
    if deviation == 0:
        return Estimate(value, value - reach * least_deviation, value + reach * least_deviation)
    spread = max(1.0, least_deviation / deviation)
    low, high = np.quantile(draws, [float(ndtr(-reach)), float(ndtr(reach))])
    return Estimate(
        value, float(centre + spread * (low - centre)), float(centre + spread * (high - centre))
    )


def expanded_reach(models: int, level: float = LEVEL) -> float:
    """Return how many of the draws' deviations an interval reaches to each side."""
    return float(student.ppf((1 + level) / 2, models - 1)) * math.sqrt(models / (models - 1))


def mean_estimate(
    values: Floats,
    counts: NDArray[np.int64],
    *,
    level: float = LEVEL,
    least_deviation: float = 0.0,
) -> Estimate:
    """Return the mean of one value a model, with its bootstrap interval."""
    draws = counts @ values / counts.sum(axis=1)
    return percentile_estimate(
        float(values.mean()),
        draws,
        models=len(values),
        level=level,
        least_deviation=least_deviation,
    )


@dataclass(frozen=True)
class Swaps:
    """Signs (swaps by federations): −1 where the labels of a federation's two models change."""

    signs: Floats
    exact: bool  # all swaps are there, the one that changes nothing among them

    def p_value(self, observed: float, draws: Floats) -> float:
        """Return the share of swaps whose statistic is as large; with +1 where they are drawn."""
        reached = int(np.sum(draws >= observed - _TIE * max(1.0, abs(observed))))
        return reached / len(draws) if self.exact else (1 + reached) / (1 + len(draws))


def draw_swaps(models: int, *, seed: int, limit: int = SWAPS) -> Swaps:
    """Return all swaps where they are at most `limit`, else that many, drawn.

    For statistics that do not change when all labels do, so that the first one may stay.
    """
    if models < 2:
        raise ConfigError(f"swaps between {models} federations, expected at least two")
    if models - 1 < limit.bit_length() and 2 ** (models - 1) <= limit:
        patterns = np.arange(2 ** (models - 1))[:, None] >> np.arange(models - 1) & 1
        rest = 1.0 - 2 * patterns
        return Swaps(np.column_stack([np.ones(len(rest)), rest]), exact=True)
    rng = np.random.default_rng(seed)
    return Swaps(rng.choice([-1.0, 1.0], size=(limit, models)), exact=False)
