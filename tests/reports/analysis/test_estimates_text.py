import math

import pytest

from secede.reports.analysis.estimates import (
    Estimate,
    Unit,
    format_brief,
    format_estimate,
    format_interval,
    format_mean,
    format_number,
    format_points,
)

ESTIMATE = Estimate(0.9813, 0.976, 0.9866, 3, "seeds")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9813, "share", "98.1"),
        (-0.0001, "points", "0.0"),
        (-0.02, "points", "\u22122.0"),
        (0.0491, "loss", "0.049"),
        (12.34, "loss", "12.3"),
        (166.337, "MB", "166.3"),
        (1039.4, "MB", "1,039"),
        (1_200_000, "count", "1,200,000"),
        (3.0, "rounds", "3"),
        (3.5, "rounds", "3.5"),
        (2.71, "times", "2.7"),
        (math.inf, "loss", "not finite"),
    ],
)
def test_numbers_have_the_form_of_their_unit(value: float, unit: Unit, text: str) -> None:
    assert format_number(value, unit) == text


def test_means_carry_their_unit_and_intervals_do_not() -> None:
    assert format_mean(ESTIMATE, "share") == "98.1\u00a0%"
    assert format_interval(ESTIMATE, "share") == "97.6 to 98.7"
    assert format_estimate(ESTIMATE, "share", digits=2) == "98.13\u00a0% (97.60 to 98.66)"


def test_intervals_that_are_missing_or_without_width_are_left_out() -> None:
    assert format_estimate(Estimate(3, None, None, 1, "none"), "rounds") == "3"
    assert format_estimate(Estimate(3, 3, 3, 2, "seeds"), "rounds") == "3"


def test_differences_show_their_sign() -> None:
    gap = Estimate(-0.015, -0.021, 0.009, 3, "seeds")
    assert format_points(gap) == "\u22121.5 points (\u22122.1 to +0.9)"
    assert format_points(Estimate(0.01, None, None, 1, "none")) == "+1.0 points"


def test_a_terminal_gets_the_mean_and_half_the_width() -> None:
    assert (
        format_brief(Estimate(0.975, 0.965, 0.985, 5, "seeds"), "share")
        == "97.5\u00a0±\u00a01.0\u00a0%"
    )
    assert format_brief(Estimate(3.0, None, None, 1, "none"), "rounds") == "3"
    assert format_brief(None, "share") == ""


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "+1.2"), (-0.0123, "−1.2"), (0.0001, "0.0"), (-0.0001, "0.0")]
)
def test_a_difference_has_its_sign_and_zero_has_none(value: float, text: str) -> None:
    assert format_number(value, "difference") == text
