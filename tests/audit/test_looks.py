from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from secede.audit.bounds import lower_bound, upper_bound
from secede.audit.looks import (
    corrected_p_value,
    false_finding_bound,
    lower_bounds,
    upper_bounds,
)
from secede.audit.ranks import Ranks
from secede.errors import DataError


def test_one_look_is_not_corrected() -> None:
    assert upper_bounds([7], 12, looks=1) == (upper_bound(7, 12),)
    assert lower_bounds([7], 12, looks=1) == (lower_bound(7, 12),)
    assert corrected_p_value(0.3, 1) == 0.3
    assert false_finding_bound(0.01, 1) == 0.01


def test_the_error_is_split_over_the_planned_looks() -> None:
    # Three looks at 85 %: each at 95 %, and no success of ten leaves 1 − 0.05^(1/10).
    assert upper_bounds([0, 0], 10, looks=3, level=0.85) == pytest.approx([1 - 0.05**0.1] * 2)
    assert lower_bounds([10], 10, looks=3, level=0.85) == pytest.approx([0.05**0.1])
    assert corrected_p_value(0.02, 3) == pytest.approx(0.06)
    assert corrected_p_value(0.5, 3) == 1
    assert false_finding_bound(0.01, 5) == pytest.approx(0.05)
    assert false_finding_bound(0.4, 5) == 1


def test_more_planned_looks_widen_the_bounds() -> None:
    uppers = [upper_bounds([6], 12, looks=looks)[0] for looks in (1, 2, 5, 20)]
    lowers = [lower_bounds([6], 12, looks=looks)[0] for looks in (1, 2, 5, 20)]
    assert uppers == sorted(set(uppers))
    assert lowers == sorted(set(lowers), reverse=True)


@pytest.mark.parametrize("chance", [0.2, 0.5, 0.7])
def test_bounds_of_independent_looks_all_hold_at_once(chance: float) -> None:
    weights = binom.pmf(np.arange(13), 12, chance)
    one_look = covered = 0.0
    for looks in product(range(13), repeat=2):
        weight = weights[list(looks)].prod()
        covered += weight * all(b >= chance for b in upper_bounds(looks, 12, looks=2))
        one_look += weight * all(upper_bound(k, 12) >= chance for k in looks)
    assert covered >= 0.95
    assert covered >= one_look


def test_false_findings_over_several_models_stay_below_the_bound() -> None:
    rng = np.random.default_rng(11)
    order = rng.random((4, 20, 6)).argsort(axis=2) + 1  # four looks at twenty canaries
    found = 0
    for drawn in rng.integers(6, size=(2000, 20)):
        readings = (look[range(20), drawn] for look in order)
        p_values = [Ranks.of((int(r), 6) for r in ranks).rank_p_value for ranks in readings]
        found += min(p_values) < 0.05
    bound = false_finding_bound(0.05, 4)
    assert lower_bound(found, 2000, 0.99) <= bound
    assert upper_bound(found, 2000, 0.99) > 0.05  # more often than at a single look


def test_looks_that_were_not_planned_are_refused() -> None:
    with pytest.raises(DataError, match="3 looks were taken, 2 planned"):
        upper_bounds([1, 2, 3], 12, looks=2)
    with pytest.raises(DataError, match="3 looks were taken, 2 planned"):
        lower_bounds([1, 2, 3], 12, looks=2)
    with pytest.raises(DataError, match="0 looks"):
        corrected_p_value(0.5, 0)
    with pytest.raises(DataError, match="0 looks"):
        false_finding_bound(0.5, 0)
