import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secede.errors import ConfigError
from secede.scenarios import default_share
from secede.scenarios.scenario import changed_count, check_share


@pytest.mark.parametrize(
    ("clients", "share"), [(2, 0.66), (5, 0.66), (9, 0.66), (10, 0.8), (100, 0.8)]
)
def test_the_papers_share_depends_on_the_number_of_clients(clients: int, share: float) -> None:
    assert default_share(clients) == share


@pytest.mark.parametrize("share", [0, -0.1, 1.01, math.nan, math.inf])
def test_a_share_outside_of_its_range_names_key_value_and_range(share: float) -> None:
    with pytest.raises(
        ConfigError, match=rf"scenario\.share is {share}, expected a number above 0 and at most 1"
    ):
        check_share(share)


@pytest.mark.parametrize("share", [1e-6, 0.66, 1])
def test_a_share_inside_of_its_range_passes(share: float) -> None:
    check_share(share)


def test_the_count_is_the_rounded_share_of_all_samples() -> None:
    assert changed_count(0.66, 12_000, 10_800) == 7_920
    assert changed_count(0.66, 10, 10) == 7


@given(st.floats(0.01, 1), st.integers(50, 10_000))
def test_the_count_is_within_half_a_sample_of_the_share(share: float, count: int) -> None:
    try:
        changed = changed_count(share, count, count)
    except ConfigError:
        changed = 0
    assert abs(changed - share * count) <= 0.5 + 1e-9


def test_a_share_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="is none of 4 samples"):
        changed_count(0.1, 4, 4)


def test_more_than_the_eligible_samples_are_refused_with_the_largest_possible_share() -> None:
    # 0.896 must be rounded down: 0.9 would be refused again.
    with pytest.raises(
        ConfigError, match=r"950 of 1000 samples, but only 896 .* use 0\.89 or less"
    ):
        changed_count(0.95, 1000, 896)
