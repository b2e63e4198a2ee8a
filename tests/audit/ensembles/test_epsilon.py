from __future__ import annotations

import math

import numpy as np
import pytest

from secede.audit.ensembles.epsilon import DELTA, epsilon_score, epsilons, forgetting_quality
from secede.audit.ensembles.margins import Booleans, Floats


def column(*values: float) -> Floats:
    return np.array(values, dtype=float)[:, None]


def everybody(models: int) -> Booleans:
    return np.ones((models, 1), dtype=bool)


def test_epsilon_by_hand() -> None:
    # Erased 1 2 3 6, retrained 4 5 7 8. "Erased below 3.5": FPR 0, not used. "Below 4.5": FPR 1/4
    # and FNR 1/4, so log((3/4 − δ) / (1/4)) = log 3; "below 6.5": FPR 2/4 and FNR 0, not used.
    epsilon, capped = epsilons(column(1, 2, 3, 6), column(4, 5, 7, 8), everybody(4))
    assert epsilon[0] == pytest.approx(math.log((0.75 - DELTA) / 0.25))
    assert not capped[0]


def test_kinds_that_a_threshold_parts_get_the_cap_in_either_direction() -> None:
    low, high = column(1, 2, 3, 4), column(5, 6, 7, 8)
    for pair in ((low, high), (high, low)):
        epsilon, capped = epsilons(*pair, everybody(4))
        assert (epsilon[0], capped[0]) == (math.log(4), True)


def test_equal_margins_tell_nothing() -> None:
    epsilon, capped = epsilons(column(2, 2, 2), column(2, 2, 2), everybody(3))
    assert (epsilon[0], capped[0]) == (0, False)


def slow_epsilon(one: Floats, other: Floats) -> float:
    best = 0.0
    for cut in np.concatenate([one, other]):
        for below in (True, False):
            false = np.mean(other <= cut) if below else np.mean(other > cut)
            missed = np.mean(one > cut) if below else np.mean(one <= cut)
            if false == missed == 0:
                return math.log(len(one))
            if false > 0 and missed > 0:
                for x, y in ((false, missed), (missed, false)):
                    best = max(best, math.log(max(1 - DELTA - x, 1e-12) / y))
    return min(best, math.log(len(one)))


def test_epsilon_equals_a_slow_loop_over_thresholds_with_ties_and_absent_federations() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 12, (2, 9, 40)).astype(float)
    one[:, :5] += 20
    mask = rng.random((9, 40)) < 0.7
    mask[:, 39] = False
    epsilon, capped = epsilons(one, other, mask)
    slow = [slow_epsilon(one[mask[:, j], j], other[mask[:, j], j]) for j in range(39)]
    assert epsilon == pytest.approx(slow)
    assert capped[:5].all()


def test_forgetting_quality_by_hand() -> None:
    # 0.2, 0.5 and 1.7 lie in the bins 1, 2 and 4; 99 in the last one.
    assert forgetting_quality(np.array([0.2, 0.5, 1.7])) == pytest.approx((1 + 1 / 2 + 1 / 8) / 3)
    assert forgetting_quality(np.array([99.0])) == 2.0**-12


def test_epsilon_stands_beside_that_of_retraining_again() -> None:
    rng = np.random.default_rng(1)
    one, retrained, again = rng.normal(size=(3, 32, 200))
    mask = np.ones((32, 200), dtype=bool)
    alike = epsilon_score("x", one, retrained, again, mask)
    assert alike.erased.mean == pytest.approx(alike.null.mean, abs=0.1)
    shifted = epsilon_score("x", one + 0.5, retrained, again, mask)
    assert shifted.erased.mean > shifted.null.mean + 0.2
    assert shifted.erased.forgetting_quality < shifted.null.forgetting_quality
    assert shifted.erased.median <= shifted.erased.tail <= math.log(32)
    parted = epsilon_score("x", one + 99, retrained, again, mask).erased
    assert (parted.capped_share, parted.median) == (1, math.log(32))
