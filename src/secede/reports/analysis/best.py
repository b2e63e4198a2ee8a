"""Which values of a column are the best: those whose interval overlaps the best one's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secede.reports.analysis.statistics import Estimate


@dataclass(frozen=True)
class Aim:
    """What makes a value good: little `badness`, which is convex and least at `ideal` if at all."""

    badness: Callable[[float], float]
    ideal: float = 0.0


HIGH = Aim(lambda value: -value)
LOW = Aim(lambda value: value)
ZERO = Aim(abs)
NO_RISE = Aim(lambda value: max(value, 0.0))  # below zero is as good as zero
ONE = Aim(lambda value: abs(math.log(value)) if value > 0 else math.inf, ideal=1.0)


def best(values: Sequence[Estimate | None], aim: Aim) -> tuple[bool, ...]:
    """Tell for each value whether it is the best, or tied with it as far as intervals tell."""
    spans = [None if value is None else _span(value, aim) for value in values]
    found = [span for span in spans if span is not None and math.isfinite(span[0])]
    if not found:
        return (False,) * len(values)
    _, _, most = min(found)
    return tuple(span is not None and span[1] <= most for span in spans)


def _span(value: Estimate, aim: Aim) -> tuple[float, float, float]:
    """Return the badness of the mean, and the least and the most of it in the interval."""
    low, high = value.interval or (value.mean, value.mean)
    ends = [aim.badness(low), aim.badness(high)]
    if low <= aim.ideal <= high:
        ends.append(aim.badness(aim.ideal))
    return aim.badness(value.mean), min(ends), max(ends)
