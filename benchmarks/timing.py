"""Times contenders in turns, so that a machine that slows down slows all of them down.

A ratio is the median of the ratios within each repeat, not the ratio of two medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """What one contender took in each repeat."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds)

    @property
    def low(self) -> float:
        """The lower quartile, in seconds."""
        return self._quartile(0)

    @property
    def high(self) -> float:
        """The upper quartile, in seconds."""
        return self._quartile(2)

    def times_faster_than(self, baseline: Timing) -> float:
        """Return the median over the repeats of the baseline's seconds over these."""
        pairs = zip(baseline.seconds, self.seconds, strict=True)
        return statistics.median(slow / fast for slow, fast in pairs)

    def __add__(self, other: Timing) -> Timing:
        """Return what both took one after the other, repeat by repeat."""
        return Timing(tuple(a + b for a, b in zip(self.seconds, other.seconds, strict=True)))

    def __mul__(self, factor: float) -> Timing:
        """Return what `factor` times the work would take."""
        return Timing(tuple(factor * value for value in self.seconds))

    def as_dict(self) -> dict[str, object]:
        """Return median, quartiles and every repeat, as the JSON file holds them."""
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "seconds": list(self.seconds),
        }

    def _quartile(self, which: int) -> float:
        if len(self.seconds) == 1:
            return self.seconds[0]
        return statistics.quantiles(self.seconds, n=4, method="inclusive")[which]


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Call the contenders in turns, A B C A B C ..., and return what each call took.

    Each is called once before (twice on a GPU), untimed.
    """
    for _ in range(2 if device == "cuda" else 1):
        for call in contenders.values():
            call()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, call in contenders.items():
            started = _now(device, clock)
            call()
            seconds[name].append(_now(device, clock) - started)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def _now(device: str, clock: Callable[[], float]) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return clock()
