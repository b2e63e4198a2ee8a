from __future__ import annotations

import numpy as np
import pytest

from harness.synthetic_margins import allowed_rejections, rejections
from secede.audit.bounds import interval
from secede.audit.ensembles.bootstrap import draw_swaps
from secede.audit.ensembles.margins import Booleans, Floats
from secede.audit.ensembles.visibility import ToldScore, accuracies, ratio_parts, told_score


def slow_accuracy(one: Floats, other: Floats, mask: Booleans) -> float:
    """Fit both kinds without federation i, and ask for its two models."""
    right = list[float]()
    for i in range(len(mask)):
        ratios = np.zeros(2)
        for j in np.flatnonzero(mask[i]):
            rest = [k for k in range(len(mask)) if k != i and mask[k, j]]
            if not rest:
                continue
            asked = mask[:, j]
            variance = np.concatenate([one[asked, j], other[asked, j]]).var()
            means = one[rest, j].mean(), other[rest, j].mean()
            for place, kind in enumerate((one, other)):
                far, near = (kind[i, j] - means[1]) ** 2, (kind[i, j] - means[0]) ** 2
                ratios[place] += (far - near) / (2 * variance)
        right += [float(ratios[0] > 0), float(ratios[1] < 0)]
    return float(np.mean(right))


def kinds(
    seed: int, models: int = 7, samples: int = 12, shift: float = 0.0
) -> tuple[Floats, Floats, Booleans]:
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(2, models, samples))
    return one + shift, other, rng.random((models, samples)) < 0.7


@pytest.mark.parametrize("seed", range(5))
def test_the_accuracy_is_that_of_a_slow_loop_and_so_are_those_of_swaps(seed: int) -> None:
    one, other, mask = kinds(seed, shift=0.3)
    swaps = draw_swaps(7, seed=0)
    parts = ratio_parts(one, other, mask)
    for signs, fast in list(zip(swaps.signs, accuracies(*parts, swaps.signs), strict=True))[::9]:
        kept = (signs > 0)[:, None]
        first, second = np.where(kept, one, other), np.where(kept, other, one)
        assert fast == pytest.approx(slow_accuracy(first, second, mask))


def test_a_large_shift_is_told_every_time_and_none_half_the_time() -> None:
    swaps = draw_swaps(12, seed=0)
    full = told_score("leaver", *kinds(0, 12, 60, 3.0), swaps, level=0.05)
    assert (full.accuracy.value, full.accuracy.high) == (1, 1)
    assert full.p_value == 1 / len(swaps.signs)
    values = [
        told_score("x", *kinds(s, 12, 20), draw_swaps(12, seed=0, limit=9), level=0.05)
        for s in range(200)
    ]
    assert np.mean([v.accuracy.value for v in values]) == pytest.approx(0.5, abs=0.03)


def test_equal_kinds_are_told_apart_at_most_at_the_nominal_rate() -> None:
    """Accuracies are few numbers, so that ties make the test reject less often than its level."""
    p_values = [
        told_score("x", *kinds(s, 10, 15), draw_swaps(10, seed=s), level=0.05).p_value
        for s in range(200)
    ]
    assert rejections(p_values, 0.05) <= max(allowed_rejections(200, 0.05))
    assert rejections(p_values, 0.3) <= max(allowed_rejections(200, 0.3))
    assert rejections(p_values, 0.3) >= min(allowed_rejections(200, 0.15))


def test_half_a_deviation_on_twenty_samples_is_told_with_the_stated_power() -> None:
    """32 models, samples apart from each other: the best test is right in Φ(√20 / 4) = 87 %."""
    scores = [
        told_score("x", *kinds(s, 32, 20, 0.5), draw_swaps(32, seed=s, limit=199), level=0.05)
        for s in range(40)
    ]
    assert 0.75 < np.mean([s.accuracy.value for s in scores]) < 0.87
    assert np.mean([s.p_value <= 0.05 for s in scores]) > 0.9


def test_the_smallest_accuracy_is_seen_in_eight_of_ten_audits() -> None:
    """Models whose accuracy is the smallest one on average are found about that often."""
    scores = list[ToldScore]()
    for seed in range(100):
        one, other, mask = kinds(seed, 32, 20, 0.6)
        common = np.random.default_rng(1000 + seed).normal(0, 0.5, (2, 32, 1))
        swaps = draw_swaps(32, seed=seed, limit=199)
        scores.append(told_score("x", one + common[0], other + common[1], mask, swaps, level=0.05))
    smallest = [score.smallest_accuracy() or 1.0 for score in scores]
    assert np.mean([s.accuracy.value for s in scores]) == pytest.approx(np.mean(smallest), abs=0.02)
    assert rejections([s.p_value for s in scores], 0.05) in allowed_rejections(100, 0.8)


def test_the_interval_takes_a_federation_as_one_answer() -> None:
    one, other, mask = kinds(0, 12, 60, 3.0)
    score = told_score("x", one, other, mask, draw_swaps(12, seed=0), level=0.05)
    expected = interval(12, 12)
    assert (score.accuracy.low, score.accuracy.high) == pytest.approx(expected)
    chance = told_score("x", other, other, mask, draw_swaps(12, seed=0), level=0.05).accuracy
    assert (chance.value, chance.low, chance.high) == pytest.approx((0.5, *interval(6, 12)))


def test_no_accuracy_is_enough_for_too_few_models() -> None:
    one, other, mask = kinds(0, 4, 30)
    score: ToldScore = told_score("x", one, other, mask, draw_swaps(4, seed=0), level=0.01)
    assert score.smallest_accuracy() is None
