"""Estimates: means over seeds with 95 % intervals, their differences and ratios, and their text.

Intervals are Student's t over seeds, and Wilson's for one seed's test set. Numbers have one form
on the page, in the terminal and on figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from scipy import stats

from secede.reports import names
from secede.reports.records.runs import Run, Score
from secede.verification import Score as Share

CONFIDENCE = 0.95
SHARE = (0.0, 1.0)
POSITIVE = (0.0, math.inf)
RANKS = (1.0, math.inf)
MINUS = "\u2212"
ONE_SEED = "one seed: sampling interval of the test set only"

Basis = Literal["seeds", "test set", "none"]
Unit = Literal[
    "share",
    "points",
    "difference",
    "loss",
    "rank",
    "p",
    "rounds",
    "MB",
    "count",
    "seconds",
    "times",
]


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
    half = _t_quantile(len(values) - 1) * math.sqrt(variance / len(values))
    low, high = max(mean - half, within[0]), min(mean + half, within[1])
    return Estimate(mean, low, high, len(values), "seeds")


@cache  # scipy takes longer for one quantile than all other sums of a table
def _t_quantile(freedom: int) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))


def paired_p_value(values: Sequence[float]) -> float:
    """Return the two-sided p value that the mean of paired differences is zero; one has 1."""
    if len(values) == 1:
        return 1.0
    if min(values) == max(values):
        return 1.0 if values[0] == 0 else 0.0
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    statistic = abs(mean) / math.sqrt(variance / len(values))
    return float(2 * stats.t.sf(statistic, len(values) - 1))


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


def score_unit(score: str) -> Unit:
    """Return the unit of a score."""
    if score == names.CANARY_RANK:
        return "rank"
    return "share" if names.is_proportion(score) else "loss"


def mean_score(run: Run, arm: str, round: int, score: str) -> Estimate:
    """Return one score of an arm after a round, over the run's seeds."""
    scores = run.scores(arm, round, score)
    if score == names.CANARY_RANK:
        return mean_over_seeds([each.value for each in scores], within=RANKS)
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


def gap_to_retraining(run: Run, arm: str, round: int, score: str) -> Estimate:
    """Return how far an arm's score lies from retraining's last one, paired by seed."""
    return difference(run.scores(arm, round, score), run.last_scores(names.RETRAIN, score))


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


def format_number(value: float, unit: Unit, *, digits: int | None = None) -> str:
    """Return a value as text without its unit; shares are in percent."""
    if not math.isfinite(value):
        return "not finite"
    if unit == "difference":  # of shares, in points with its sign
        text = _signed(value)
        return "0.0" if float(text.replace(MINUS, "-")) == 0 else text
    if unit == "p":
        return f"{value:.2g}"
    if unit in ("share", "points"):
        value *= 100
    text = f"{value:,.{_digits(value, unit) if digits is None else digits}f}"
    is_zero = float(text.replace(",", "")) == 0
    return text.removeprefix("-") if is_zero else text.replace("-", MINUS)


def format_mean(estimate: Estimate, unit: Unit, *, digits: int | None = None) -> str:
    """Return an estimate's mean with its unit."""
    return format_number(estimate.mean, unit, digits=digits) + _suffix(unit)


def format_interval(estimate: Estimate, unit: Unit, *, digits: int | None = None) -> str:
    """Return an estimate's interval without unit; empty if there is none or it has no width."""
    if estimate.interval is None:
        return ""
    low, high = (format_number(end, unit, digits=digits) for end in estimate.interval)
    return "" if estimate.low == estimate.high else f"{low} to {high}"


def format_estimate(estimate: Estimate, unit: Unit, *, digits: int | None = None) -> str:
    """Return mean and interval in one string."""
    ends = format_interval(estimate, unit, digits=digits)
    return format_mean(estimate, unit, digits=digits) + (f" ({ends})" if ends else "")


def format_brief(estimate: Estimate | None, unit: Unit) -> str:
    """Return a mean ± half its interval, short enough for a terminal."""
    if estimate is None:
        return ""
    if estimate.interval is None or unit != "share" or estimate.low == estimate.high:
        return format_mean(estimate, unit)
    low, high = estimate.interval
    half = format_number((high - low) / 2, unit)
    return f"{format_number(estimate.mean, unit)}\u00a0±\u00a0{half}{_suffix(unit)}"


def format_points(estimate: Estimate) -> str:
    """Return a difference of shares in signed points and its interval, if that has a width."""
    text = f"{_signed(estimate.mean)} points"
    if estimate.interval is None or estimate.low == estimate.high:
        return text
    low, high = map(_signed, estimate.interval)
    return f"{text} ({low} to {high})"


def format_gap(first: Estimate, second: Estimate, gap: Estimate) -> str:
    """Return a difference of shares as a reader finds it who subtracts the printed ones."""
    one, other = (float(f"{100 * each.mean:.1f}") for each in (first, second))
    return format_points(replace(gap, mean=(one - other) / 100))


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", MINUS)


def _digits(value: float, unit: Unit) -> int:
    match unit:
        case "loss":
            return 3 if abs(value) < 10 else 1
        case "count":
            return 0
        case "rounds":
            return 0 if float(value).is_integer() else 1
        case "MB":
            return 1 if abs(value) < 1000 else 0
        case _:
            return 1


def _suffix(unit: Unit) -> str:
    suffixes: dict[Unit, str] = {
        "share": "\u00a0%",
        "points": "\u00a0points",
        "MB": "\u00a0MB",
        "seconds": "\u00a0s",
        "times": "×",
    }
    return suffixes.get(unit, "")
