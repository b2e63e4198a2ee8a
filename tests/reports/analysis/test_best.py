import math

import pytest

from secede.reports.analysis.best import HIGH, LOW, NO_RISE, ONE, ZERO, Aim, best
from secede.reports.analysis.statistics import Estimate


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
    assert list(best([exactly(value) for value in values], aim)) == expected


def test_values_whose_intervals_overlap_the_best_ones_are_tied_with_it() -> None:
    values = [between(0.94, 0.96), between(0.95, 0.99), between(0.90, 0.93)]
    assert best(values, HIGH) == (True, True, False)


def test_an_interval_around_the_aim_reaches_it() -> None:
    # The first is nearest by its mean; the second's interval holds zero, the third's does not.
    values = [between(0.001, 0.003), between(-0.02, 0.03), between(0.01, 0.02)]
    assert best(values, ZERO) == (True, True, False)


def test_what_is_missing_or_not_finite_is_never_the_best() -> None:
    assert best([None, exactly(2.0), exactly(math.inf)], ONE) == (False, True, False)
    assert best([None, exactly(math.nan)], LOW) == (False, False)
