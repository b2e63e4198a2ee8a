from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from harness.synthetic_margins import allowed_rejections, rejections
from secede.audit.ensembles.bootstrap import draw_counts, draw_swaps
from secede.audit.ensembles.divergence import KlomScore, bin_places, klom, klom_score, shares
from secede.audit.ensembles.margins import Booleans, Floats

COUNTS = draw_counts(10, seed=0, resamples=20)


def test_bins_have_equal_widths_over_the_joint_range_and_margins_are_clipped() -> None:
    places = bin_places(np.array([[0.0, 5.0], [9.99, 5.0]]), np.array([[20.0, 5.0], [1.0, 5.0]]))
    assert places[0].tolist() == [[0, 0], [9, 0]]
    assert places[1].tolist() == [[19, 0], [1, 0]]
    clipped = bin_places(np.array([[-1000.0]]), np.array([[0.0]]), np.array([[1e9]]))
    assert [int(place[0, 0]) for place in clipped] == [0, 10, 19]


def test_klom_by_hand() -> None:
    # Bins of two samples; federation 2 is not asked the second one.
    mask = np.array([[True, True], [True, True], [True, False]])
    one = shares(np.array([[0, 3], [0, 3], [1, 9]]), mask, np.ones(3))
    other = shares(np.array([[0, 4], [1, 3], [1, 9]]), mask, np.ones(3))
    first = 2 / 3 * math.log(2 / 3 / (1 / 3)) + 1 / 3 * math.log(1 / 3 / (2 / 3))
    assert klom(one, other) == pytest.approx([first, math.log(2)])
    # Where retraining never was, its share is 1e-5.
    assert klom(other, one)[1] == pytest.approx(0.5 * math.log(0.5 / 1e-5) + 0.5 * math.log(0.5))


def test_weights_are_federations_repeated() -> None:
    rng = np.random.default_rng(0)
    places, mask = rng.integers(0, 20, (4, 6)), rng.random((4, 6)) < 0.7
    repeated = [0, 0, 2, 3]
    weighted = shares(places, mask, np.array([2.0, 0, 1, 1]))
    assert weighted == pytest.approx(shares(places[repeated], mask[repeated], np.ones(4)))


def asked(seed: int, shift: float = 0.0, samples: int = 20) -> tuple[list[Floats], Booleans]:
    rng = np.random.default_rng(seed)
    kinds = list(rng.normal(size=(3, 10, samples)))
    return [kinds[0] + shift, *kinds[1:]], rng.random((10, samples)) < 0.8


def scored(seed: int, shift: float = 0.0, swaps: int = 9) -> KlomScore:
    (one, retrained, again), mask = asked(seed, shift)
    drawn = draw_swaps(10, seed=seed, limit=swaps)
    return klom_score("x", one, retrained, again, mask, COUNTS, drawn)


def test_the_excess_is_what_is_above_retraining_again() -> None:
    score = scored(0, shift=2)
    assert score.mean > score.null_mean > 0
    assert score.tail > score.mean
    assert score.excess_mean.value == pytest.approx(score.mean - score.null_mean)
    assert score.excess_tail.value == pytest.approx(score.tail - score.null_tail)
    assert score.excess_mean.low > 0


def test_the_exact_p_value_is_that_of_all_swaps_made_one_by_one() -> None:
    (one, retrained, again), mask = asked(3, shift=0.3)
    one, retrained, again, mask = one[:4], retrained[:4], again[:4], mask[:4]
    places = bin_places(one, retrained, again)
    draws = []
    for signs in product([True, False], repeat=4):
        kept = np.array(signs)[:, None]
        kinds = np.where(kept, places[0], places[2]), np.where(kept, places[2], places[0])
        q = shares(places[1], mask, np.ones(4))
        means = [klom(shares(kind, mask, np.ones(4)), q).mean() for kind in kinds]
        draws.append(means[0] - means[1])
    score = klom_score(
        "x", one, retrained, again, mask, np.ones((2, 4), dtype=int), draw_swaps(4, seed=0)
    )
    assert score.p_value == np.mean(np.array(draws) >= draws[0] - 1e-9)


def test_retraining_has_no_excess_but_at_the_nominal_rate() -> None:
    p_values = [scored(seed).p_value for seed in range(200)]
    assert rejections(p_values, 0.1) in allowed_rejections(200, 0.1)
    assert np.mean([scored(seed, swaps=2).excess_mean.value for seed in range(40)]) == (
        pytest.approx(0, abs=0.1)
    )


def test_half_a_deviation_is_seen_with_the_stated_power() -> None:
    """Few models fill few bins: 32 of them and fifty samples see it in nine of ten draws."""
    p_values, swaps = list[float](), draw_swaps(32, seed=0, limit=19)
    for seed in range(30):
        one, retrained, again = np.random.default_rng(seed).normal(size=(3, 32, 50))
        mask, counts = np.ones((32, 50), dtype=bool), draw_counts(32, seed=0, resamples=2)
        score = klom_score("x", one + 0.5, retrained, again, mask, counts, swaps)
        p_values.append(score.p_value)
    assert rejections(p_values, 0.1) in allowed_rejections(30, 0.9)
