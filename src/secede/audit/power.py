"""How much a test with so many canaries can see, before any are planted.

The alternative: the model scores the K − 1 other candidates with standard normal numbers and the
drawn one with a normal number shifted so that it beats any one of them with probability q; canaries
are independent. The null distribution is exact, and the power follows from the rank probabilities
by convolution. With two candidates this is the test of pairwise wins.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from secede.audit.ranks import add_canary, rank_sum_counts
from secede.errors import ConfigError

_REACH = 9.0  # standard deviations on each side of the shifted normal
_POINTS = 2001  # of the trapezoidal rule, which is exact to rounding for such integrands
_SUREST = 1 - 1e-9  # the largest q that is searched

Probabilities = NDArray[np.float64]


def rank_probabilities(candidates: int, win_probability: float) -> Probabilities:
    """Return the probability of each rank if the drawn candidate beats one other with this one."""
    _check_share(win_probability, "win probability")
    if candidates < 2:
        raise ConfigError(f"{candidates} candidates for each canary, expected two or more")
    deviation = np.linspace(-_REACH, _REACH, _POINTS)
    weight = np.exp(-(deviation**2) / 2)
    # One other candidate scores higher than the drawn one with this probability, by its score.
    beaten = ndtr(-(deviation + math.sqrt(2) * ndtri(win_probability)))
    better = np.arange(candidates)[:, None]
    shares: Probabilities = binom.pmf(better, candidates - 1, beaten) @ (weight / weight.sum())
    return shares


def rank_test_power(
    count: int, candidates: int, win_probability: float, *, level: float = 0.01
) -> float:
    """Return the probability that the rank sum of `count` canaries has a p value below `level`."""
    _check_count(count)
    _check_share(level, "level")
    null = list(rank_sum_counts(((candidates, count),)))
    sums = _sum_probabilities(count, rank_probabilities(candidates, win_probability))
    return float(sums[: _rejected_sums(null, level)].sum())


def smallest_count(
    candidates: int,
    win_probability: float,
    *,
    power: float = 0.9,
    level: float = 0.01,
    limit: int = 5000,
) -> int:
    """Return the smallest number of canaries with this power; ConfigError beyond `limit`.

    Rank sums are whole numbers, so that a few canaries more can have slightly less power.
    """
    _check_share(power, "power")
    _check_share(level, "level")
    if win_probability <= 0.5:
        raise ConfigError(f"a win probability of {win_probability}, expected more than 0.5")
    reached = _powers(candidates, win_probability, level)
    for count in range(1, limit + 1):
        if next(reached) >= power:
            return count
    raise ConfigError(
        f"{limit} canaries of {candidates} candidates do not have a power of {power} where the "
        f"drawn one wins with {win_probability}: expect a larger effect, or raise the limit"
    )


def smallest_effect(
    count: int, candidates: int, *, power: float = 0.9, level: float = 0.01
) -> float:
    """Return the smallest win probability that `count` canaries see with this power."""
    _check_share(power, "power")
    _check_share(level, "level")
    _check_count(count)
    rejected = _rejected_sums(list(rank_sum_counts(((candidates, count),))), level)

    def missing(win_probability: float) -> float:
        sums = _sum_probabilities(count, rank_probabilities(candidates, win_probability))
        return power - float(sums[:rejected].sum())

    if missing(_SUREST) > 0:
        raise ConfigError(
            f"{count} canaries of {candidates} candidates cannot have a power of {power} at the "
            f"level {level}, however well they are remembered: plant more, or raise the level"
        )
    return 0.5 if missing(0.5) <= 0 else float(brentq(missing, 0.5, _SUREST, xtol=1e-9))


def _powers(candidates: int, win_probability: float, level: float) -> Iterator[float]:
    """Yield the power of 1, 2, 3, ... canaries."""
    ranks = rank_probabilities(candidates, win_probability)
    null, sums = [1], np.ones(1)
    while True:
        null, sums = add_canary(null, candidates), np.convolve(sums, ranks)
        yield float(sums[: _rejected_sums(null, level)].sum())


def _rejected_sums(null: list[int], level: float) -> int:
    """Return how many of the rank sums, lowest first, have a p value below the level."""
    cumulative = list(accumulate(null))
    return bisect_left(cumulative, level, key=lambda ways: ways / cumulative[-1])


def _sum_probabilities(count: int, ranks: Probabilities) -> Probabilities:
    """Return the probabilities of the sums of `count` ranks, by repeated squaring."""
    sums = np.ones(1)
    for bit in f"{count:b}":
        sums = np.convolve(sums, sums)
        if bit == "1":
            sums = np.convolve(sums, ranks)
    return sums


def _check_count(count: int) -> None:
    if count < 1:
        raise ConfigError(f"the power of {count} canaries, expected at least one")


def _check_share(value: float, name: str) -> None:
    if not 0 < value < 1:
        raise ConfigError(f"a {name} of {value}, expected one between 0 and 1")
