import math
from collections.abc import Callable

import pytest

from secede.reports.analysis.estimates import (
    HIGH,
    LOW,
    NO_RISE,
    ONE,
    ZERO,
    Aim,
    Estimate,
    difference,
    mark_best,
    mean_loss,
    mean_over_seeds,
    mean_score,
    mean_share,
    paired_p_value,
    ratio,
    wilson,
)
from secede.reports.records.runs import Run, Score


def test_the_t_interval_matches_the_hand_sum() -> None:
    # mean 0.92, deviation 0.02, t of 2 degrees 4.302653: half width 4.302653 * 0.02 / sqrt(3).
    estimate = mean_over_seeds([0.90, 0.92, 0.94])
    assert estimate.mean == pytest.approx(0.92)
    assert estimate.interval == pytest.approx((0.8703173, 0.9696827), abs=1e-6)
    assert estimate.note == "mean and 95 % interval over 3 seeds (Student's t)"


def test_intervals_hold_nothing_impossible() -> None:
    assert mean_share([Score(0.0, 9), Score(0.02, 9)]).low == 0
    assert mean_share([Score(0.98, 9), Score(1.0, 9)]).high == 1
    far_apart = difference([Score(0.9, 9), Score(0.1, 9)], [Score(0.1, 9), Score(0.9, 9)])
    assert far_apart.interval == pytest.approx((-1, 1))
    assert mean_loss([Score(0.1, 9), Score(2.0, 9)]).low == 0
    assert mean_over_seeds([0.0, 0.02]).low == pytest.approx(0.01 - 12.7062 * 0.01, abs=1e-5)


def test_equal_values_have_no_width() -> None:
    assert mean_over_seeds([53.23] * 3).interval == (53.23, 53.23)


def test_one_value_has_no_interval() -> None:
    estimate = mean_over_seeds([0.4])
    assert (estimate.mean, estimate.interval) == (0.4, None)
    assert estimate.note == "one seed: no interval"


def test_no_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one seed"):
        mean_over_seeds([])


def test_a_loss_that_is_not_finite_has_no_interval() -> None:
    estimate = mean_over_seeds([1.0, math.inf])
    assert (estimate.mean, estimate.interval) == (math.inf, None)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (Score(0.5, 100), (0.4038315, 0.5961685)),
        (Score(0.0, 10), (0.0, 0.2775328)),  # z² / (n + z²)
        (Score(1.0, 10), (0.7224672, 1.0)),
    ],
)
def test_wilsons_interval_matches_known_values(score: Score, expected: tuple[float, float]) -> None:
    assert wilson(score) == pytest.approx(expected, abs=1e-6)


def test_one_seed_gets_the_interval_of_its_test_set_and_says_so() -> None:
    estimate = mean_share([Score(0.5, 100)])
    assert estimate.interval == pytest.approx((0.4038315, 0.5961685), abs=1e-6)
    assert estimate.note == "one seed: sampling interval of the test set only"
    assert mean_share([Score(0.5, 100), Score(0.5, 100)]).basis == "seeds"


def test_differences_are_paired_by_seed() -> None:
    # The seeds differ by far more than the two models do within one seed.
    first = [Score(0.50, 10), Score(0.70, 10), Score(0.90, 10)]
    second = [Score(0.49, 10), Score(0.69, 10), Score(0.89, 10)]
    gap = difference(first, second)
    assert gap.mean == pytest.approx(0.01)
    assert gap.interval == pytest.approx((0.01, 0.01))


def test_one_seeds_difference_is_newcombes() -> None:
    # Newcombe 1998, table II, example (a), method 10: 56/70 - 48/80 lies in 0.0524 to 0.3339.
    gap = difference([Score(56 / 70, 70)], [Score(48 / 80, 80)])
    assert gap.mean == pytest.approx(0.2)
    assert gap.interval == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_differences_need_the_same_seeds() -> None:
    with pytest.raises(ValueError, match="zip"):
        difference([Score(0.5, 10)], [])


def test_a_score_is_measured_in_its_own_way(make_run: Callable[..., Run]) -> None:
    run = make_run(seeds=(0,))
    assert mean_score(run, "retrain", 3, "clean_accuracy").basis == "test set"
    assert mean_score(run, "retrain", 3, "leaver_loss").basis == "none"


def test_one_seed_compared_sample_by_sample_has_bonett_and_prices_interval() -> None:
    # 30 gained, 50 lost of 2,000: 31/2002 - 51/2002, spread sqrt((82/2002 - (20/2002)^2) / 2002).
    erased = Score(0.965, 2000, gained=30, lost=50)
    found = difference([erased], [Score(0.975, 2000)])
    half = 1.959964 * ((82 / 2002 - (20 / 2002) ** 2) / 2002) ** 0.5
    assert found.mean == pytest.approx(-0.01)
    assert found.interval == pytest.approx((-20 / 2002 - half, -20 / 2002 + half), abs=1e-6)
    unpaired = difference([Score(0.965, 2000)], [Score(0.975, 2000)])
    assert unpaired.interval is not None
    assert unpaired.interval[0] < found.interval[0]  # type: ignore[index]


def test_counts_of_another_comparison_are_not_used() -> None:
    erased = Score(0.965, 2000, gained=30, lost=50)
    other = [Score(0.5, 2000)]
    assert difference([erased], other) == difference([Score(0.965, 2000)], other)


def test_a_ratio_of_losses_is_a_geometric_mean_over_seeds() -> None:
    # 2 and 1/2 cancel; log 2 = 0.693, the t quantile of one degree of freedom is 12.71.
    losses, others = [Score(0.2, 9), Score(0.1, 9)], [Score(0.1, 9), Score(0.2, 9)]
    found = ratio(losses, others)
    assert found.mean == pytest.approx(1)
    assert found.high == pytest.approx(math.exp(12.7062 * math.log(2)), rel=1e-4)
    assert ratio(losses[:1], others[:1]).interval is None


def test_a_ratio_that_explodes_is_infinite_and_no_error() -> None:
    found = ratio([Score(1e200, 9), Score(1e-200, 9)], [Score(1.0, 9), Score(1.0, 9)])
    assert found.mean == pytest.approx(1)
    assert list(found.interval or ()) == [0, math.inf]
    assert math.isnan(ratio([Score(0.0, 9)], [Score(1.0, 9)]).mean)


def between(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, 3, "seeds")


def exactly(value: float) -> Estimate:
    return Estimate(value, None, None, 1, "none")


@pytest.mark.parametrize(
    ("aim", "values", "expected"),
    [
        (HIGH, [0.9, 0.95, 0.95], [False, True, True]),
        (LOW, [1.0, 1.0, 21.0], [True, True, False]),
        (ZERO, [-0.01, 0.02, 0.5], [True, False, False]),
        (NO_RISE, [-0.3, 0.0, 0.1], [True, True, False]),
        (ONE, [0.5, 1.25, 2.0], [False, True, False]),
    ],
)
def test_the_best_is_what_the_column_aims_at(
    aim: Aim, values: list[float], expected: list[bool]
) -> None:
    assert list(mark_best([exactly(value) for value in values], aim)) == expected


def test_values_whose_intervals_overlap_the_best_ones_are_tied_with_it() -> None:
    values = [between(0.94, 0.96), between(0.95, 0.99), between(0.90, 0.93)]
    assert mark_best(values, HIGH) == (True, True, False)


def test_an_interval_around_the_aim_reaches_it() -> None:
    # The first is nearest by its mean; the second's interval holds zero, the third's does not.
    values = [between(0.001, 0.003), between(-0.02, 0.03), between(0.01, 0.02)]
    assert mark_best(values, ZERO) == (True, True, False)


def test_what_is_missing_or_not_finite_is_never_the_best() -> None:
    assert mark_best([None, exactly(2.0), exactly(math.inf)], ONE) == (False, True, False)
    assert mark_best([None, exactly(math.nan)], LOW) == (False, False)


def test_the_p_value_of_paired_differences_is_students() -> None:
    # By hand: mean 2, standard error 1 / sqrt(3), so t = 3.4641 with 2 degrees of freedom, whose
    # distribution is (1 + t / sqrt(2 + t^2)) / 2: two-sided 1 - t / sqrt(2 + t^2).
    assert paired_p_value([1.0, 2.0, 3.0]) == pytest.approx(1 - math.sqrt(12 / 14))
    assert paired_p_value([-1.0, 1.0]) == 1.0


def test_equal_differences_are_sure_unless_they_are_zero_and_one_is_never() -> None:
    assert [paired_p_value(values) for values in ([0.1] * 3, [0.0] * 3, [0.5])] == [0.0, 1.0, 1.0]
