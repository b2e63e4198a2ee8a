from __future__ import annotations

import numpy as np
import pytest

from harness.synthetic_margins import allowed_rejections
from secede.audit.ensembles.bootstrap import (
    Swaps,
    draw_counts,
    draw_swaps,
    mean_estimate,
    percentile_estimate,
)
from secede.errors import ConfigError


def test_a_resample_has_as_many_models_and_a_seed_repeats_it() -> None:
    counts = draw_counts(8, seed=1, resamples=50)
    assert (counts.sum(axis=1) == 8).all()
    assert (counts == draw_counts(8, seed=1, resamples=50)).all()
    assert (counts != draw_counts(8, seed=2, resamples=50)).any()


def test_the_interval_is_made_of_percentiles_and_wider_for_few_models() -> None:
    many = percentile_estimate(50, np.arange(101.0), models=10**6)
    assert (many.value, many.low, many.high) == pytest.approx((50, 2.5, 97.5), abs=1e-3)
    # With eight models t is 2.365, times √(8/7) is 2.528, and Φ(−2.528) is 0.0057.
    few = percentile_estimate(50, np.arange(101.0), models=8)
    assert (few.low, few.high) == pytest.approx((0.57, 99.43), abs=0.01)


def test_an_interval_is_widened_to_the_least_deviation() -> None:
    draws = np.arange(101.0)
    plain = percentile_estimate(50, draws, models=9)
    wide = percentile_estimate(50, draws, models=9, least_deviation=2 * float(draws.std()))
    assert wide.low - 50 == pytest.approx(2 * (plain.low - 50))
    assert wide.high - 50 == pytest.approx(2 * (plain.high - 50))
    assert percentile_estimate(50, draws, models=9, least_deviation=1) == plain
    flat = percentile_estimate(1, np.ones(10), models=10**6, least_deviation=0.5)
    assert (flat.low, flat.high) == pytest.approx((1 - 0.98, 1 + 0.98), abs=1e-4)


def test_a_resampled_mean_weighs_models_by_how_often_they_occur() -> None:
    estimate = mean_estimate(np.array([1.0, 5.0]), np.array([[2, 0], [1, 1], [0, 2]]))
    assert estimate.value == 3
    assert (estimate.low, estimate.high) == pytest.approx((1, 5))


@pytest.mark.parametrize("models", [8, 32])
def test_intervals_of_a_mean_cover_it_as_often_as_stated(models: int) -> None:
    counts = draw_counts(models, seed=0, resamples=300)
    missed = 0
    for seed in range(200):
        estimate = mean_estimate(np.random.default_rng(seed).normal(2, 1, models), counts)
        missed += not estimate.low <= 2 <= estimate.high
    assert missed in allowed_rejections(200, 0.05)


def test_few_federations_are_swapped_in_all_ways_and_the_first_never() -> None:
    swaps = draw_swaps(4, seed=0)
    assert swaps.exact
    assert len(np.unique(swaps.signs, axis=0)) == len(swaps.signs) == 8
    assert (swaps.signs[:, 0] == 1).all()
    assert (swaps.signs == 1).all(axis=1).sum() == 1


def test_many_federations_are_swapped_at_random_by_a_seed() -> None:
    swaps = draw_swaps(20, seed=3, limit=99)
    assert (not swaps.exact, swaps.signs.shape) == (True, (99, 20))
    assert (swaps.signs == draw_swaps(20, seed=3, limit=99).signs).all()
    assert set(np.unique(swaps.signs)) == {-1.0, 1.0}


def test_a_p_value_counts_ties_and_adds_one_where_swaps_are_drawn() -> None:
    draws = np.array([3.0, 1.0, 2.0, 3.0 - 1e-13])
    assert Swaps(np.ones((4, 2)), exact=True).p_value(3, draws) == 0.5
    assert Swaps(np.ones((4, 2)), exact=False).p_value(3, draws) == 0.6
    assert Swaps(np.ones((4, 2)), exact=False).p_value(4, draws) == 0.2


def test_one_federation_cannot_be_swapped() -> None:
    with pytest.raises(ConfigError, match="1 federations, expected at least two"):
        draw_swaps(1, seed=0)
