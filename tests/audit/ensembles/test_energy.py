from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from harness.synthetic_margins import allowed_rejections, rejections
from secede.audit.ensembles.bootstrap import draw_swaps
from secede.audit.ensembles.energy import (
    energy_distance,
    energy_score,
    pair_terms,
    sample_deviations,
)
from secede.audit.ensembles.margins import Booleans, Floats
from secede.errors import DataError


def test_the_distance_of_two_federations_by_hand() -> None:
    # One sample: 0 and 4 against 1 and 1. All four together have the deviation 1.5.
    one, other = np.array([[0.0], [4.0]]), np.array([[1.0], [1.0]])
    mask = np.ones((2, 1), dtype=bool)
    # Pairs of different federations: |0 − 1| and |4 − 1| across, |0 − 4| and |1 − 1| within.
    assert energy_distance(one, other, mask) == pytest.approx((2 * 2 - 4 - 0) / 1.5)
    assert energy_distance(one, other + 10, mask) > 1


def test_only_samples_that_both_were_asked_count() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 5, 30))
    mask = rng.random((5, 30)) < 0.6
    deviations = sample_deviations(mask, one, other)

    def distance(x: Floats, y: Floats, i: int, k: int) -> float:
        both = mask[i] & mask[k]
        return float(np.sqrt(np.mean(((x[i] - y[k]) / deviations)[both] ** 2)))

    terms = pair_terms(one, other, mask)
    for i, k in product(range(5), repeat=2):
        expected = distance(one, other, i, k) + distance(one, other, k, i)
        expected -= distance(one, one, i, k) + distance(other, other, i, k)
        assert terms[i, k] == pytest.approx(0 if i == k else expected)
    pooled = np.concatenate([one[:, 3][mask[:, 3]], other[:, 3][mask[:, 3]]])
    assert deviations[3] == pytest.approx(pooled.std())


def swapped(one: Floats, other: Floats, signs: Floats) -> tuple[Floats, Floats]:
    kept = (signs > 0)[:, None]
    return np.where(kept, one, other), np.where(kept, other, one)


def test_the_exact_p_value_is_that_of_all_swaps_made_one_by_one() -> None:
    rng = np.random.default_rng(1)
    one, other = rng.normal(0.6, 1, (5, 8)), rng.normal(size=(5, 8))
    mask = rng.random((5, 8)) < 0.8
    draws = [
        energy_distance(*swapped(one, other, np.array(signs)), mask)
        for signs in product([1.0, -1.0], repeat=5)
    ]
    score = energy_score("pool", one, other, other, mask, draw_swaps(5, seed=0))
    assert score.exact
    assert score.p_value == np.mean(np.array(draws) >= draws[0] - 1e-9)
    assert 0 < score.p_value < 1


def test_the_null_stands_beside() -> None:
    rng = np.random.default_rng(2)
    one, other, again = rng.normal(size=(3, 6, 20))
    mask: Booleans = np.ones((6, 20), dtype=bool)
    score = energy_score("test", one + 1, other, again, mask, draw_swaps(6, seed=0))
    assert score.distance == energy_distance(one + 1, other, mask)
    assert score.null_distance == energy_distance(again, other, mask) < score.distance


def p_value(seed: int, shift: float, models: int, samples: int, limit: int = 499) -> float:
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(2, models, samples))
    mask = np.ones((models, samples), dtype=bool)
    swaps = draw_swaps(models, seed=seed, limit=limit)
    return energy_score("x", one + shift, other, other, mask, swaps).p_value


@pytest.mark.parametrize("models", [8, 12])
def test_equal_kinds_are_told_apart_at_the_nominal_rate(models: int) -> None:
    p_values = [p_value(seed, 0, models, 10, limit=199) for seed in range(200)]
    assert rejections(p_values, 0.05) in allowed_rejections(200, 0.05)
    assert rejections(p_values, 0.25) in allowed_rejections(200, 0.25)


def test_half_a_deviation_is_seen_with_the_stated_power() -> None:
    """One sample, 32 models of each kind: the t test's power is 0.50, and 0.45 is to be reached.

    Ten samples that move together have all of it.
    """
    assert np.mean([p_value(seed, 0.5, 32, 1) <= 0.05 for seed in range(200)]) > 0.45 - 0.11
    assert np.mean([p_value(seed, 0.5, 32, 10) <= 0.05 for seed in range(40)]) > 0.9


def test_federations_without_a_common_sample_are_refused() -> None:
    mask = np.eye(3, dtype=bool)
    with pytest.raises(DataError, match="no sample in common"):
        energy_distance(np.zeros((3, 3)), np.ones((3, 3)), mask)
