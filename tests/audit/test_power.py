from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import binom

from secede.audit.bounds import interval
from secede.audit.power import (
    rank_probabilities,
    rank_test_power,
    smallest_count,
    smallest_effect,
)
from secede.audit.ranks import Ranks
from secede.errors import ConfigError


@given(st.integers(2, 40), st.floats(0.05, 0.995))
@settings(deadline=None)
def test_the_drawn_candidate_beats_each_other_one_as_often_as_stated(
    candidates: int, win_probability: float
) -> None:
    shares = rank_probabilities(candidates, win_probability)
    beaten = (candidates - np.arange(1, candidates + 1)) / (candidates - 1)
    assert shares.sum() == pytest.approx(1, abs=1e-12)
    assert shares @ beaten == pytest.approx(win_probability, abs=1e-10)


def test_at_chance_every_rank_is_equally_likely() -> None:
    assert rank_probabilities(10, 0.5) == pytest.approx(np.full(10, 0.1), abs=1e-12)
    assert rank_probabilities(2, 0.7) == pytest.approx([0.7, 0.3], abs=1e-12)


def test_ranks_are_those_of_shifted_normal_scores() -> None:
    scores = np.random.default_rng(5).normal(size=(200_000, 4))
    scores[:, 0] += math.sqrt(2) * ndtri(0.8)
    ranks = 1 + (scores[:, 1:] > scores[:, :1]).sum(axis=1)
    shares = np.bincount(ranks, minlength=5)[1:] / len(ranks)
    assert shares == pytest.approx(rank_probabilities(4, 0.8), abs=0.005)


def test_power_at_chance_is_the_size_of_the_test() -> None:
    # Of two dice sums 2 and 3 have P ≤ 3/36; 4 has 6/36.
    assert rank_test_power(2, 6, 0.5, level=0.1) == pytest.approx(3 / 36)
    assert rank_test_power(2, 6, 0.5, level=3 / 36) == pytest.approx(1 / 36)  # below, not at
    assert rank_test_power(4, 2, 0.9, level=0.05) == 0  # 1/16 is the lowest p value


def test_with_two_candidates_it_is_the_test_of_wins() -> None:
    # P[W ≥ 15 of 20] = 0.0207 and P[W ≥ 14] = 0.058 by chance.
    assert rank_test_power(20, 2, 0.8, level=0.05) == pytest.approx(binom.sf(14, 20, 0.8))


@pytest.mark.parametrize(
    ("count", "candidates", "win_probability", "level"),
    [(24, 10, 0.7, 0.01), (60, 2, 0.65, 0.05), (12, 4, 0.8, 0.05)],
)
def test_power_is_how_often_a_trace_is_found(
    count: int, candidates: int, win_probability: float, level: float
) -> None:
    rng = np.random.default_rng(13)
    scores = rng.normal(size=(2000, count, candidates))
    scores[:, :, 0] += math.sqrt(2) * ndtri(win_probability)
    ranks = 1 + (scores[:, :, 1:] > scores[:, :, :1]).sum(axis=2)
    found = sum(Ranks.of((int(r), candidates) for r in draw).rank_p_value < level for draw in ranks)
    low, high = interval(found, 2000, 0.99)
    assert low <= rank_test_power(count, candidates, win_probability, level=level) <= high


@pytest.mark.parametrize("candidates", [2, 10])
def test_power_grows_with_effect_level_and_doubled_canaries(candidates: int) -> None:
    effects = [rank_test_power(32, candidates, q) for q in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)]
    levels = [rank_test_power(32, candidates, 0.65, level=p) for p in (0.001, 0.01, 0.1, 0.3)]
    sizes = [rank_test_power(m, candidates, 0.65) for m in (8, 16, 32, 64, 128)]
    for powers in (effects, levels, sizes):
        assert powers == sorted(set(powers))


@pytest.mark.parametrize(
    ("win_probability", "exact", "approximate"),
    [(0.55, 866, 853), (0.6, 213, 210), (0.7, 53, 50), (0.8, 23, 20)],
)
def test_pairwise_guesses_needed_are_a_few_more_than_the_normal_approximation(
    win_probability: float, exact: int, approximate: int
) -> None:
    spread = math.sqrt(win_probability * (1 - win_probability))
    root = (ndtri(0.95) / 2 + ndtri(0.9) * spread) / (win_probability - 0.5)
    assert math.ceil(root**2) == pytest.approx(approximate, abs=1)
    assert smallest_count(2, win_probability, power=0.9, level=0.05) == exact


@pytest.mark.parametrize(("candidates", "win_probability"), [(2, 0.8), (10, 0.7), (4, 0.65)])
def test_no_smaller_count_has_the_power(candidates: int, win_probability: float) -> None:
    least = smallest_count(candidates, win_probability)
    powers = [rank_test_power(m, candidates, win_probability) for m in range(1, least + 1)]
    assert powers[-1] >= 0.9
    assert max(powers[:-1]) < 0.9


@pytest.mark.parametrize(("count", "candidates"), [(48, 10), (16, 2), (100, 2)])
def test_the_smallest_effect_has_the_power_and_no_smaller_one(count: int, candidates: int) -> None:
    effect = smallest_effect(count, candidates)
    assert rank_test_power(count, candidates, effect) == pytest.approx(0.9, abs=1e-6)
    assert rank_test_power(count, candidates, effect - 0.01) < 0.9


def test_a_power_that_chance_has_needs_no_effect() -> None:
    assert smallest_effect(20, 10, power=0.005, level=0.01) == 0.5


def test_what_cannot_be_seen_is_said() -> None:
    with pytest.raises(
        ConfigError, match=r"4 canaries of 2 candidates cannot have a power of 0\.9"
    ):
        smallest_effect(4, 2, level=0.05)
    with pytest.raises(ConfigError, match="50 canaries of 2 candidates do not have a power"):
        smallest_count(2, 0.55, limit=50)
    with pytest.raises(ConfigError, match=r"more than 0\.5"):
        smallest_count(2, 0.5)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 canaries"):
        rank_test_power(0, 2, 0.6)
    with pytest.raises(ConfigError, match="1 candidates"):
        rank_test_power(3, 1, 0.6)
    with pytest.raises(ConfigError, match="win probability of 1"):
        rank_test_power(3, 2, 1)
    with pytest.raises(ConfigError, match="level of 0"):
        smallest_effect(3, 2, level=0)
    with pytest.raises(ConfigError, match="power of 90"):
        smallest_count(2, 0.6, power=90)
