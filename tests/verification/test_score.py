import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secede.errors import DataError
from secede.verification.score import Mean, Score, share

counts = st.integers(1, 10**6)
shares = st.floats(0, 1)


def test_the_interval_matches_the_hand_sum() -> None:
    # z² = 3.841459: centre (0.3 + 0.192073) / 1.384146, half-width
    # 1.959964 * sqrt(0.021 + 0.00960365) / 1.384146 = 0.247715.
    assert Score(0.3, 10).interval() == pytest.approx((0.107791, 0.603222), abs=1e-6)


def test_the_interval_at_zero_ends_where_the_formula_says() -> None:
    # p = 0 leaves z² / (n + z²).
    assert Score(0, 10).interval() == pytest.approx((0, 3.841459 / 13.841459), abs=1e-6)
    assert Score(1, 10).interval() == pytest.approx((10 / 13.841459, 1), abs=1e-6)


def test_a_lower_level_gives_a_narrower_interval() -> None:
    # z = 1.644854 at 90 %: 0.5 ± z * sqrt(0.0025 + 0.00006763859) / 1.02705543.
    narrow = Score(0.5, 100).interval(level=0.9)
    assert narrow == pytest.approx((0.418848, 0.581152), abs=1e-6)
    assert Score(0.5, 100).interval()[0] < narrow[0]


@given(shares, counts, st.floats(0.01, 0.999))
def test_the_interval_holds_the_value_and_stays_a_share(
    value: float, count: int, level: float
) -> None:
    low, high = Score(value, count).interval(level)
    assert 0 <= low <= value <= high <= 1
    assert low < high


@given(shares, counts)
def test_the_interval_mirrors_with_the_share(value: float, count: int) -> None:
    low, high = Score(value, count).interval()
    mirrored = Score(1 - value, count).interval()
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)


@given(shares, st.integers(1, 10**5))
def test_the_ends_solve_wilsons_equation(value: float, count: int) -> None:
    for end in Score(value, count).interval():
        distance, spread = abs(value - end), math.sqrt(end * (1 - end) / count)
        assert distance == pytest.approx(1.959964 * spread, abs=1e-6)


@pytest.mark.parametrize("level", [0, 1, 95])
def test_a_level_that_is_none_is_refused(level: float) -> None:
    with pytest.raises(DataError, match=f"level {level}"):
        Score(0.5, 10).interval(level)


@pytest.mark.parametrize("count", [0, -1])
def test_no_samples_give_no_score(count: int) -> None:
    with pytest.raises(DataError, match=f"over {count} samples, expected at least one"):
        share(0, count)
    with pytest.raises(DataError, match="at least one"):
        Score(0.5, count)
    with pytest.raises(DataError, match="at least one"):
        Mean(0.5, count)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_what_is_no_share_is_no_score(value: float) -> None:
    with pytest.raises(DataError, match="not a share"):
        Score(value, 10)
    with pytest.raises(DataError, match="not a share"):
        Score(0.5, 10, reference=value)


def test_hits_become_a_share() -> None:
    assert share(3, 4) == Score(0.75, 4)


def test_a_score_carries_what_it_is_compared_with() -> None:
    assert Score(0.75, 4).against(Score(0.5, 99)) == Score(0.75, 4, reference=0.5)
    assert Score(0.75, 4).against(0.5).reference == 0.5


def test_a_record_holds_value_and_count_and_a_reference_only_where_there_is_one() -> None:
    assert Score(0.75, 4).to_dict() == {"value": 0.75, "count": 4}
    assert Score(0.75, 4, 0.5).to_dict() == {"value": 0.75, "count": 4, "reference": 0.5}
    assert Mean(2.5, 4).to_dict() == {"value": 2.5, "count": 4}


def test_a_mean_that_is_not_finite_is_refused() -> None:
    with pytest.raises(DataError, match="a mean of inf"):
        Mean(math.inf, 3)
