from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secede.audit.bounds import interval
from secede.audit.ranks import Ranks, hit_counts, rank_sum_counts, win_p_value
from secede.errors import DataError

MIXED = [(2, 2, 2, 2), (3, 3, 5), (2, 4, 4, 3), (10, 10), (6,)]

ranked = st.lists(
    st.integers(2, 6).flatmap(lambda k: st.tuples(st.integers(1, k), st.just(k))),
    min_size=1,
    max_size=20,
)


def all_readings(sizes: tuple[int, ...]) -> list[Ranks]:
    tuples = product(*(range(1, k + 1) for k in sizes))
    return [Ranks.of(zip(ranks, sizes, strict=True)) for ranks in tuples]


@pytest.mark.parametrize("sizes", MIXED)
def test_p_values_are_shares_of_all_outcomes_of_the_coins(sizes: tuple[int, ...]) -> None:
    readings = all_readings(sizes)
    for reading in readings:
        lower = sum(other.total <= reading.total for other in readings)
        more = sum(other.hits >= reading.hits for other in readings)
        assert reading.rank_p_value == float(Fraction(lower, len(readings)))
        assert reading.hit_p_value == float(Fraction(more, len(readings)))


@pytest.mark.parametrize("sizes", MIXED)
def test_the_score_to_show_is_standardised_over_all_outcomes(sizes: tuple[int, ...]) -> None:
    scores = [reading.z_score for reading in all_readings(sizes)]
    assert np.mean(scores) == pytest.approx(0, abs=1e-12)
    assert np.mean(np.square(scores)) == pytest.approx(1)
    assert all_readings(sizes)[0].z_score == max(scores)  # every canary at rank 1


def test_two_dice_have_the_sums_that_everybody_knows() -> None:
    assert rank_sum_counts(((6, 2),)) == (1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1)
    assert Ranks.of([(1, 6), (3, 6)]).rank_p_value == 6 / 36
    assert hit_counts(((6, 2),)) == (25, 10, 1)
    assert hit_counts(((2, 1), (6, 1))) == (5, 6, 1)


def test_the_p_value_is_exact_where_a_float_would_lose_it() -> None:
    assert Ranks(((48, *[0] * 9),)).rank_p_value == 1e-48
    assert Ranks(((47, 1, *[0] * 8),)).rank_p_value == 49e-48
    assert win_p_value(200, 200) == 2.0**-200


def test_a_reading_says_its_means_and_places() -> None:
    ranks = Ranks.of([(1, 2), (2, 2), (1, 3), (3, 3), (3, 3)])
    assert ranks.histograms == ((1, 1), (1, 0, 2))
    assert ranks.groups == ((2, 2), (3, 3))
    assert (ranks.count, ranks.total, ranks.hits, ranks.last_places) == (5, 10, 2, 3)
    assert (ranks.mean, ranks.chance_mean) == (2.0, 1.8)
    # variance 2 · 3/12 + 3 · 8/12 = 2.5, and one rank above chance in all
    assert ranks.z_score == pytest.approx(-1 / math.sqrt(2.5))


@given(ranked)
def test_a_lower_rank_never_raises_the_p_value(pairs: list[tuple[int, int]]) -> None:
    (rank, candidates), *rest = pairs
    p_values = [Ranks.of([(r, candidates), *rest]).rank_p_value for r in range(rank, 0, -1)]
    assert p_values == sorted(p_values, reverse=True)
    assert all(0 < p <= 1 for p in p_values)


@given(ranked)
def test_mirrored_ranks_share_one_null(pairs: list[tuple[int, int]]) -> None:
    counts = rank_sum_counts(Ranks.of(pairs).groups)
    assert counts == counts[::-1]
    assert sum(counts) == math.prod(candidates for _, candidates in pairs)


@pytest.mark.parametrize("level", [0.01, 0.05, 0.2])
def test_coins_that_a_fixed_model_cannot_know_are_found_as_rarely_as_stated(level: float) -> None:
    rng = np.random.default_rng(7)
    losses = rng.gumbel(size=(48, 10)) * rng.uniform(0.1, 9, size=(48, 1))  # one fixed model
    order = losses.argsort(axis=1).argsort(axis=1) + 1
    draws = rng.integers(10, size=(2000, 48))
    found = sum(
        Ranks.of((int(rank), 10) for rank in order[range(48), drawn]).rank_p_value < level
        for drawn in draws
    )
    low, high = interval(found, 2000, 0.99)
    # Sums are whole numbers: the nearest rate that the test can have lies just below the level.
    below = np.cumsum(np.array(rank_sum_counts(((10, 48),))) / 10.0**48)
    rate = below[below < level].max()
    assert 0.9 * level < rate < level
    assert low <= rate <= high


def test_wins_are_tosses_of_a_fair_coin() -> None:
    for wins in range(6):
        ways = sum(sum(tosses) >= wins for tosses in product((0, 1), repeat=5))
        assert win_p_value(wins, 5) == ways / 32


@pytest.mark.parametrize(
    ("histograms", "message"),
    [
        ((), "no canary"),
        (((0, 0),), "no canary"),
        (((3,),), "1 candidates"),
        (((4, -1),), "-1 canaries"),
        (((1, 0), (0, 1)), "one for each number"),
    ],
)
def test_histograms_that_are_none_are_refused(
    histograms: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Ranks(histograms)


@pytest.mark.parametrize("pair", [(0, 2), (3, 2)])
def test_a_rank_beyond_the_candidates_is_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(DataError, match=f"rank {pair[0]} of 2"):
        Ranks.of([pair])


@pytest.mark.parametrize("counts", [(3, 2), (-1, 2), (0, 0)])
def test_wins_that_cannot_be_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="wins"):
        win_p_value(*counts)


def test_joined_ranks_are_those_of_all_canaries_at_once() -> None:
    first, second = [(1, 2), (3, 4)], [(2, 2), (4, 4), (1, 3)]
    joined = Ranks.joined([Ranks.of(first), Ranks.of(second)])
    assert joined == Ranks.of([*first, *second])
    assert Ranks.joined([joined]) == joined
