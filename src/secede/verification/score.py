"""Scores and means, with the number of samples that they are over.

A `Score` is a share of samples and has an interval; a `Mean` (a loss) has none, because its
value and count do not tell the spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from secede.errors import DataError

TOLERANCE = 0.005  # below the accuracy before an erasure, for post-training to stop


@dataclass(frozen=True)
class Score:
    """A share from 0 to 1 of `count` samples, and the value that it is compared with, if any."""

    value: float
    count: int
    reference: float | None = None

    def __post_init__(self) -> None:
        _check_count(self.count)
        for value in (self.value, self.reference):
            if value is not None and not 0 <= value <= 1:
                raise DataError(f"a score of {value} is not a share, expected 0 to 1")

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return Wilson's score interval: the shares p with |value − p| ≤ z·√(p(1 − p)/count).

        It never leaves [0, 1] and is not empty at 0 or 1. Samples count as independent draws.
        """
        if not 0 < level < 1:
            raise DataError(f"an interval of level {level}, expected one between 0 and 1")
        z = NormalDist().inv_cdf((1 + level) / 2)
        spread = z * z / self.count
        centre = (self.value + spread / 2) / (1 + spread)
        variance = self.value * (1 - self.value) / self.count + spread / (4 * self.count)
        half = z * math.sqrt(variance) / (1 + spread)
        # Rounding must not push an end past the value itself when that is 0 or 1.
        return max(0.0, min(centre - half, self.value)), min(1.0, max(centre + half, self.value))

    def against(self, reference: Score | float) -> Score:
        """Return this score with the value it is compared with, such as the retrained model's."""
        return replace(
            self, reference=reference.value if isinstance(reference, Score) else reference
        )

    def to_dict(self) -> dict[str, float]:
        """Return the value, the count and the reference, if any, as records hold them."""
        reference = {} if self.reference is None else {"reference": self.reference}
        return {"value": self.value, "count": self.count, **reference}


@dataclass(frozen=True)
class Mean:
    """The mean of a quantity without bounds, such as a loss in nats, over `count` samples."""

    value: float
    count: int

    def __post_init__(self) -> None:
        _check_count(self.count)
        if not math.isfinite(self.value):
            raise DataError(f"a mean of {self.value}, expected a finite number")

    def to_dict(self) -> dict[str, float]:
        """Return the value and the count, as records hold them."""
        return {"value": self.value, "count": self.count}


def share(hits: int, count: int) -> Score:
    """Return the score of `hits` among `count` samples."""
    _check_count(count)
    return Score(hits / count, count)


def rounds_that_pay(before: float, after: Sequence[float]) -> int | None:
    """Return the number of rounds after which post-training may stop; None if none is good enough.

    The retained clients compare the accuracy on their own samples `after` 0, 1, 2, ... rounds with
    that `before` the erasure: good enough is half a point below. A start that is as good already
    needs no round.
    """
    return next(
        (number for number, accuracy in enumerate(after) if accuracy >= before - TOLERANCE), None
    )


def _check_count(count: int) -> None:
    if count < 1:
        raise DataError(f"a score over {count} samples, expected at least one")
