"""A loss of accuracy on the same samples, before and after: Tango's score interval (1998).

Only samples whose answer changed tell. At a margin of 0 the statistic is McNemar's,
(lost − gained) / √(lost + gained); for other margins the nuisance parameter takes its most likely
value under the margin. Statistics in Medicine 17, 891–908.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from scipy.optimize import brentq

from secede.errors import DataError


def paired_statistic(lost: int, gained: int, count: int, margin: float) -> float:
    """Return how many standard deviations the loss lies above `margin`."""
    excess = lost - gained - count * margin
    # The most likely share of gained samples, if the loss is `margin` (Tango's equation 7).
    b = (2 * count - lost + gained) * margin - lost - gained
    c = -gained * margin * (1 - margin)
    share = max(0.0, (math.sqrt(max(0.0, b * b - 8 * count * c)) - b) / (4 * count))
    variance = count * (2 * share + margin * (1 - margin))
    if variance <= 0:
        return 0.0 if excess == 0 else math.copysign(math.inf, excess)
    return excess / math.sqrt(variance)


def paired_interval(lost: int, gained: int, count: int, level: float) -> tuple[float, float]:
    """Return the losses that are not refused: of `count` samples, so many were lost and gained."""
    if min(lost, gained) < 0 or lost + gained > count or count < 1:
        raise DataError(f"{lost} samples lost and {gained} gained of {count}")
    if not 0 < level < 1:
        raise DataError(f"an interval of level {level}, expected one between 0 and 1")
    z, value = NormalDist().inv_cdf((1 + level) / 2), (lost - gained) / count

    def end(side: float) -> float:
        """Return where the statistic crosses z on this side of the value, or the last loss."""

        def beyond(margin: float) -> float:
            return paired_statistic(lost, gained, count, margin) + side * z

        edge = side * (1 - 1e-12)
        return side if side * beyond(edge) >= 0 else float(brentq(beyond, edge, value))

    return end(-1.0), end(1.0)
