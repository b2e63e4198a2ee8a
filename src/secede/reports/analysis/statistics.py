"""Means over seeds with 95 % intervals, their differences and ratios, and the best of a column.

Intervals are Student's t over seeds, and Wilson's for one seed's test set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from secede.reports import names
from secede.reports.records.runs import Run, Score
from secede.verification.score import Score as Share

CONFIDENCE = 0.95
SHARE = (0.0, 1.0)
POSITIVE = (0.0, math.inf)
ONE_SEED = "one seed: sampling interval of the test set only"

Basis = Literal["seeds", "test set", "none"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its 95 % interval; `basis` says what the interval covers."""

    mean: float
    low: float | None
    high: float | None
    seeds: int
    basis: Basis

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval; None where one seed gives none."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def note(self) -> str:
        """What the interval covers, in words."""
        if self.basis == "seeds":
            return f"mean and 95 % interval over {self.seeds} seeds (Student's t)"
        return ONE_SEED if self.basis == "test set" else "one seed: no interval"


def mean_over_seeds(
    values: Sequence[float], *, within: tuple[float, float] = (-math.inf, math.inf)
) -> Estimate:
    """Return the mean and its t interval, clipped to `within`; one value has no interval."""
    if not values:
        raise ValueError("no values to average: expected at least one seed")
    # Rounding the mean must not give equal values a spread.
    same = min(values) == max(values)
    mean = values[0] if same else math.fsum(values) / len(values)
    if len(values) == 1 or not math.isfinite(mean):
        return Estimate(mean, None, None, len(values), "none")
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    half = quantile * math.sqrt(variance / len(values))
    low, high = max(mean - half, within[0]), min(mean + half, within[1])
    return Estimate(mean, low, high, len(values), "seeds")


def wilson(score: Score) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    return Share(score.value, score.count).interval(CONFIDENCE)


def mean_share(scores: Sequence[Score]) -> Estimate:
    """Return the mean share over seeds; with one seed, Wilson's interval of its test set."""
    if len(scores) != 1:
        return mean_over_seeds([score.value for score in scores], within=SHARE)
    low, high = wilson(scores[0])
    return Estimate(scores[0].value, low, high, 1, "test set")


def mean_loss(scores: Sequence[Score]) -> Estimate:
    """Return the mean loss over seeds; one seed has no interval: only its mean is recorded."""
    return mean_over_seeds([score.value for score in scores], within=POSITIVE)


def mean_score(run: Run, arm: str, round: int, score: str) -> Estimate:
    """Return one score of an arm after a round, over the run's seeds."""
    scores = run.scores(arm, round, score)
    return mean_share(scores) if names.is_proportion(score) else mean_loss(scores)


def difference(first: Sequence[Score], second: Sequence[Score]) -> Estimate:
    """Return first minus second, paired by seed; one seed's interval covers its test set.

    With one seed and a sample-by-sample comparison it is Bonett and Price's interval for paired
    shares; without one it is Newcombe's for independent shares, which is wider than needed.
    """
    pairs = list(zip(first, second, strict=True))
    if len(pairs) != 1:
        return mean_over_seeds([one.value - other.value for one, other in pairs], within=(-1, 1))
    one, other = pairs[0]
    gap = one.value - other.value
    if one.gained is not None and one.lost is not None and _agree(one, gap):
        return _paired(gap, one.gained, one.lost, one.count)
    (low, high), (other_low, other_high) = wilson(one), wilson(other)
    below = math.hypot(one.value - low, other_high - other.value)
    above = math.hypot(high - one.value, other.value - other_low)
    return Estimate(gap, gap - below, gap + above, 1, "test set")


def log_ratio(losses: Sequence[Score], others: Sequence[Score]) -> Estimate:
    """Return the mean logarithm of one loss over another, paired by seed."""
    pairs = [(one.value, other.value) for one, other in zip(losses, others, strict=True)]
    return mean_over_seeds([math.log(a / b) if a > 0 and b > 0 else math.nan for a, b in pairs])


def ratio(losses: Sequence[Score], others: Sequence[Score]) -> Estimate:
    """Return one loss over another: the geometric mean over seeds, with its interval."""
    logs = log_ratio(losses, others)
    low, high = (None if end is None else _exp(end) for end in (logs.low, logs.high))
    return Estimate(_exp(logs.mean), low, high, logs.seeds, logs.basis)


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)


def _agree(score: Score, gap: float) -> bool:
    """Return whether the sample-by-sample counts belong to this difference."""
    return abs((score.gained or 0) - (score.lost or 0) - gap * score.count) < 0.5


def _paired(gap: float, gained: int, lost: int, count: int) -> Estimate:
    up, down = (gained + 1) / (count + 2), (lost + 1) / (count + 2)
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    half = z * math.sqrt((up + down - (up - down) ** 2) / (count + 2))
    middle = up - down
    return Estimate(gap, max(middle - half, -1.0), min(middle + half, 1.0), 1, "test set")


@dataclass(frozen=True)
class Aim:
    """What makes a value good: low `badness`, which is convex and minimal at `ideal`, if at all."""

    badness: Callable[[float], float]
    ideal: float = 0.0


HIGH = Aim(lambda value: -value)
LOW = Aim(lambda value: value)
ZERO = Aim(abs)
NO_RISE = Aim(lambda value: max(value, 0.0))  # below zero is as good as zero
ONE = Aim(lambda value: abs(math.log(value)) if value > 0 else math.inf, ideal=1.0)


def mark_best(values: Sequence[Estimate | None], aim: Aim) -> tuple[bool, ...]:
    """Return for each value whether it is the best, or its interval overlaps the best one's."""
    spans = [None if value is None else _span(value, aim) for value in values]
    finite = [span for span in spans if span is not None and math.isfinite(span[0])]
    if not finite:
        return (False,) * len(values)
    _, _, best_at_worst = min(finite)
    return tuple(span is not None and span[1] <= best_at_worst for span in spans)


def _span(value: Estimate, aim: Aim) -> tuple[float, float, float]:
    """Return the badness of the mean, then its minimum and maximum in the interval."""
    low, high = value.interval or (value.mean, value.mean)
    ends = [aim.badness(low), aim.badness(high)]
    if low <= aim.ideal <= high:
        ends.append(aim.badness(aim.ideal))
    return aim.badness(value.mean), min(ends), max(ends)
