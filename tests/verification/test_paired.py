"""The paired interval: published examples, McNemar's statistic, and every table by brute force."""

from __future__ import annotations

import math
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secede.errors import DataError
from secede.verification.paired import paired_interval, paired_statistic


@pytest.mark.parametrize(
    ("lost", "gained", "count", "low", "high"),
    [
        # Tango 1998, and Newcombe 1998 for the same tables of paired answers.
        (1, 0, 44, -0.0594, 0.1181),
        (0, 0, 100, -0.0370, 0.0370),  # z^2 / (n + z^2)
    ],
)
def test_the_interval_is_as_published(
    lost: int, gained: int, count: int, low: float, high: float
) -> None:
    assert paired_interval(lost, gained, count, 0.95) == pytest.approx((low, high), abs=1e-4)


@given(lost=st.integers(0, 30), gained=st.integers(0, 30))
def test_without_a_margin_it_is_mcnemars_test(lost: int, gained: int) -> None:
    expected = (lost - gained) / math.sqrt(lost + gained) if lost + gained else 0.0
    assert paired_statistic(lost, gained, 70, 0.0) == pytest.approx(expected)


def slow_statistic(lost: int, gained: int, count: int, margin: float) -> float:
    """Search the share of gained samples that is most likely if the loss is `margin`."""

    def log_likelihood(share: float) -> float:
        parts = ((gained, share), (lost, share + margin), (count - lost - gained, 0.0))
        rest = 1 - 2 * share - margin
        total = 0.0
        for number, chance in (*parts[:2], (parts[2][0], rest)):
            total += number * math.log(max(chance, 1e-300)) if number else 0.0
        return total

    least, most = max(0.0, -margin), (1 - margin) / 2
    for _ in range(200):  # ternary search: the likelihood has one top
        third = (most - least) / 3
        if log_likelihood(least + third) < log_likelihood(most - third):
            least += third
        else:
            most -= third
    share = (least + most) / 2
    variance = count * (2 * share + margin - margin**2)
    return (lost - gained - count * margin) / math.sqrt(variance)


@given(
    lost=st.integers(1, 20),
    gained=st.integers(1, 20),
    same=st.integers(1, 200),
    margin=st.floats(0.01, 0.5),
)
def test_the_statistic_is_the_one_under_the_most_likely_share(
    lost: int, gained: int, same: int, margin: float
) -> None:
    count = lost + gained + same
    expected = slow_statistic(lost, gained, count, margin)
    assert paired_statistic(lost, gained, count, margin) == pytest.approx(expected, abs=1e-3)


@given(lost=st.integers(0, 40), gained=st.integers(0, 40), same=st.integers(1, 100))
def test_the_ends_are_where_the_statistic_crosses(lost: int, gained: int, same: int) -> None:
    count = lost + gained + same
    low, high = paired_interval(lost, gained, count, 0.95)
    assert -1 <= low <= (lost - gained) / count <= high <= 1
    assert paired_statistic(lost, gained, count, low) == pytest.approx(1.959964, abs=1e-4)
    assert paired_statistic(lost, gained, count, high) == pytest.approx(-1.959964, abs=1e-4)
    mirrored = paired_interval(gained, lost, count, 0.95)
    assert mirrored == pytest.approx((-high, -low), abs=1e-9)


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("gains", [0.0, 0.05])
def test_a_loss_of_the_margin_is_called_more_in_at_most_about_one_case_of_forty(
    margin: float, gains: float
) -> None:
    count, losses = 60, margin + gains
    wrong = 0.0
    for lost in range(count + 1):
        for gained in range(count + 1 - lost):
            chance = comb(count, lost) * comb(count - lost, gained)
            rest = count - lost - gained
            weight = chance * losses**lost * gains**gained * (1 - losses - gains) ** rest
            if weight > 1e-12 and paired_interval(lost, gained, count, 0.95)[0] > margin:
                wrong += weight
    assert wrong < 0.035


@pytest.mark.parametrize(
    ("lost", "gained", "count", "level"),
    [(-1, 0, 5, 0.95), (3, 3, 5, 0.95), (0, 0, 0, 0.95), (1, 0, 5, 1.0)],
)
def test_what_cannot_be_is_refused(lost: int, gained: int, count: int, level: float) -> None:
    with pytest.raises(DataError):
        paired_interval(lost, gained, count, level)
