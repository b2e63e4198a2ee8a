from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from secede.audit.bounds import (
    epsilon_lower_bound,
    guess_p_value,
    interval,
    lower_bound,
    upper_bound,
)
from secede.errors import DataError

counts = st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def test_bounds_without_a_success_or_a_failure_match_the_hand_sum() -> None:
    # (1 − u)^10 = 0.05, and l^10 = 0.05.
    assert upper_bound(0, 10) == pytest.approx(1 - 0.05**0.1)
    assert lower_bound(10, 10) == pytest.approx(0.05**0.1)
    assert (lower_bound(0, 10), upper_bound(10, 10)) == (0, 1)
    assert interval(0, 10) == pytest.approx((0, 1 - 0.025**0.1))
    # One of two: 1 − (1 − l)² = 0.05 and 1 − u² = 0.05.
    assert lower_bound(1, 2) == pytest.approx(1 - math.sqrt(0.95))
    assert upper_bound(1, 2) == pytest.approx(math.sqrt(0.95))


@given(counts, st.floats(0.6, 0.999))
def test_the_observed_tail_has_the_error_at_each_bound(
    observed: tuple[int, int], level: float
) -> None:
    successes, trials = observed
    low, high = lower_bound(successes, trials, level), upper_bound(successes, trials, level)
    assert low < successes / trials < high or successes in (0, trials)
    if successes > 0:
        assert binom.sf(successes - 1, trials, low) == pytest.approx(1 - level)
    if successes < trials:
        assert binom.cdf(successes, trials, high) == pytest.approx(1 - level)


@pytest.mark.parametrize("chance", [0.02, 0.1, 0.35, 0.5, 0.77, 0.98])
def test_bounds_cover_the_truth_as_often_as_they_say(chance: float) -> None:
    weights = binom.pmf(np.arange(13), 12, chance)
    below = [chance <= upper_bound(k, 12) for k in range(13)]
    above = [lower_bound(k, 12) <= chance for k in range(13)]
    assert weights @ below >= 0.95
    assert weights @ above >= 0.95
    # No wider than need be: one more count left out would be too much.
    assert binom.cdf(below.index(True), 12, chance) > 0.05
    assert binom.sf(11 - above[::-1].index(True), 12, chance) > 0.05


@pytest.mark.parametrize("chances", [(0.1, 0.9), (0.0, 0.5, 1.0), (0.3, 0.5, 0.95)])
def test_bounds_hold_for_the_mean_chance_of_canaries_that_differ(
    chances: tuple[float, ...],
) -> None:
    twelve = np.resize(chances, 12)
    covered = 0.0
    for outcome in product((0, 1), repeat=12):
        tosses = np.array(outcome)
        weight = np.prod(np.where(tosses, twelve, 1 - twelve))
        covered += weight * (twelve.mean() <= upper_bound(int(tosses.sum()), 12))
    assert covered >= 0.95


def test_epsilon_is_nothing_at_chance_and_below() -> None:
    assert epsilon_lower_bound(50, 100) == 0
    assert epsilon_lower_bound(0, 100) == 0
    assert epsilon_lower_bound(58, 100) == 0  # P[W ≥ 58] = 0.067
    assert epsilon_lower_bound(59, 100) > 0  # P[W ≥ 59] = 0.044


def test_epsilon_matches_the_hand_sum() -> None:
    # All of five: q^5 = 0.05, so that e^ε = q / (1 − q) with q = 0.549280.
    assert epsilon_lower_bound(5, 5) == pytest.approx(math.log(0.549280 / 0.450720), abs=1e-5)
    # Nine of ten: the sum of two terms is 0.05 where the bound lies.
    epsilon = epsilon_lower_bound(9, 10)
    q = 1 / (1 + math.exp(-epsilon))
    assert 10 * q**9 * (1 - q) + q**10 == pytest.approx(0.05)


@given(counts, st.floats(0.6, 0.999))
def test_without_delta_epsilon_is_the_log_odds_of_the_lower_bound(
    observed: tuple[int, int], level: float
) -> None:
    share = lower_bound(*observed, level)
    expected = max(0.0, math.log(share / (1 - share))) if share > 0 else 0.0
    assert epsilon_lower_bound(*observed, level=level) == pytest.approx(expected, abs=1e-9)


def test_epsilon_with_delta_is_the_papers_printed_value() -> None:
    # Steinke, Nasr and Jagielski 2023, Appendix D: 75 of 100 guesses about 1,000 samples.
    assert epsilon_lower_bound(75, 100, canaries=1000, delta=1e-4) == pytest.approx(0.673, abs=5e-4)


def test_the_slack_of_delta_matches_the_direct_sum() -> None:
    # Three of four at ε = 0: P[W ≥ 3] = 5/16, windows 6/16, 10/32 and 11/48 of which 6/16 leads.
    assert guess_p_value(3, 4, 0.0) == pytest.approx(5 / 16)
    assert guess_p_value(3, 4, 0.0, slack=0.5) == pytest.approx(5 / 16 + 0.5 * 6 / 16)
    assert guess_p_value(0, 4, 0.0, slack=0.5) == 1


@given(counts, st.floats(0, 4), st.floats(0, 4), st.floats(0, 0.999))
def test_the_p_value_increases_with_epsilon(
    observed: tuple[int, int], one: float, other: float, slack: float
) -> None:
    low, high = sorted((one, other))
    smaller, larger = (guess_p_value(*observed, epsilon, slack) for epsilon in (low, high))
    assert smaller <= larger + 1e-12


@pytest.mark.parametrize("delta", [0, 1e-5, 1e-3])
def test_epsilon_increases_with_correct_guesses_and_falls_with_delta(delta: float) -> None:
    bounds = [epsilon_lower_bound(v, 60, delta=delta) for v in range(61)]
    assert bounds == sorted(bounds)
    assert bounds[60] > bounds[50] > 0
    assert epsilon_lower_bound(50, 60, delta=2 * delta + 1e-6) < bounds[50]


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_randomised_response_is_rarely_said_to_leak_more_than_it_does(epsilon: float) -> None:
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    exceeds = np.array([epsilon_lower_bound(v, 64) > epsilon for v in range(65)])
    assert binom.pmf(np.arange(65), 64, chance) @ exceeds <= 0.05
    rng = np.random.default_rng(3)
    coins = rng.integers(2, size=(400, 64))
    answers = np.where(rng.random((400, 64)) < chance, coins, 1 - coins)
    wrong = int(exceeds[(answers == coins).sum(axis=1)].sum())
    assert lower_bound(wrong, 400, 0.99) <= 0.05


def test_randomised_response_with_many_canaries_is_told_nearly_whole() -> None:
    assert 1.9 < epsilon_lower_bound(8808, 10_000) < 2.0  # at ε = 2 88.08 % are right


@pytest.mark.parametrize("level", [0, 1, 95])
def test_a_level_that_is_none_is_refused(level: float) -> None:
    for bound in (lower_bound, upper_bound, interval):
        with pytest.raises(DataError, match=f"level {level}"):
            bound(1, 2, level)


def test_counts_that_cannot_be_are_refused() -> None:
    with pytest.raises(DataError, match="3 of 2 trials"):
        upper_bound(3, 2)
    with pytest.raises(DataError, match="0 of 0 trials"):
        lower_bound(0, 0)
    with pytest.raises(DataError, match="4 guesses about 3 canaries"):
        epsilon_lower_bound(1, 4, canaries=3)
    with pytest.raises(DataError, match="below 1 / \\(2 · 10\\)"):
        epsilon_lower_bound(9, 10, delta=0.05)
