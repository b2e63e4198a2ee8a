from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import nct, ttest_1samp

from harness.synthetic_margins import allowed_rejections
from secede.audit.ensembles.equivalence import EquivalenceScore, equivalence_score
from secede.audit.ensembles.margins import Floats


def test_both_tests_by_another_library() -> None:
    rng = np.random.default_rng(0)
    one, retrained, again = rng.normal(size=(3, 12))
    score = equivalence_score("clean accuracy", one + 0.1, retrained, again, margin=0.8)
    deviation = np.std(again - retrained, ddof=1)
    difference = one + 0.1 - retrained
    above = ttest_1samp(difference, -0.8 * deviation, alternative="greater").pvalue
    below = ttest_1samp(difference, 0.8 * deviation, alternative="less").pvalue
    assert score.p_value == pytest.approx(max(above, below))
    assert score.null_deviation == pytest.approx(deviation)
    assert score.difference == pytest.approx(difference.mean())


def test_the_smallest_margin_just_passes() -> None:
    one, retrained, again = np.random.default_rng(1).normal(size=(3, 10))
    smallest = equivalence_score("x", one, retrained, again).smallest_margin
    assert smallest is not None
    for factor, passes in ((1.001, True), (0.999, False)):
        score = equivalence_score("x", one, retrained, again, margin=factor * smallest)
        assert score.equivalent is passes


def drawn(seed: int, shift: float) -> EquivalenceScore:
    rng = np.random.default_rng(seed)
    noise: Floats = rng.normal(size=16)
    # The null's deviation is known here, so that the margin is where the test has its level.
    again = np.tile([-1.0, 1.0], 8) * np.sqrt(15 / 16)
    return equivalence_score("x", noise + shift, np.zeros(16), again)


def test_models_at_the_margin_are_called_equivalent_at_the_nominal_rate() -> None:
    passed = sum(drawn(seed, 1.0).equivalent for seed in range(200))
    assert passed in allowed_rejections(200, 0.05)


def test_models_half_a_deviation_off_pass_with_the_stated_power() -> None:
    """That is the power of a t test at half a deviation from its margin: 60 % with 16 models."""
    power = nct.sf(1.753, 15, 0.5 * 4)
    assert sum(drawn(seed, 0.5).equivalent for seed in range(200)) in (
        allowed_rejections(200, float(power))
    )


def test_a_constant_difference_needs_no_test() -> None:
    again = np.array([1.0, -1.0, 0.0])
    for shift, passes in ((0.5, True), (1.5, False)):
        assert equivalence_score("x", np.full(3, shift), np.zeros(3), again).equivalent is passes


def test_where_retraining_again_changes_nothing_nothing_else_may() -> None:
    same = equivalence_score("probe", np.zeros(4), np.zeros(4), np.zeros(4))
    assert (same.equivalent, same.smallest_margin) == (True, None)
    other = equivalence_score("probe", np.array([0, 0, 0, 0.1]), np.zeros(4), np.zeros(4))
    assert (other.equivalent, other.p_value) == (False, 1)
