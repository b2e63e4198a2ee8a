from __future__ import annotations

import numpy as np
import pytest

from harness.synthetic_margins import allowed_rejections, rejections
from secede.audit.ensembles.bootstrap import draw_counts
from secede.audit.ensembles.margins import Floats
from secede.audit.ensembles.relative import RelativeScore, relative_score

MASK = np.ones((16, 10), dtype=bool)


def kinds(seed: int, *shifts: float, samples: int = 10) -> list[Floats]:
    rng = np.random.default_rng(seed)
    return [rng.normal(shift, 1, (16, samples)) for shift in shifts]


def relative(seed: int, own: float, retrained: float, original: float) -> RelativeScore:
    one, near, far = kinds(seed, own, retrained, original)
    return relative_score("x", one, near, far, MASK, draw_counts(16, seed=seed, resamples=199))


def test_the_distances_by_hand() -> None:
    # One sample: erased 0 and 0, retrained 1 and 1, original 3 and 3; no spread within a kind.
    one, near, far = (np.full((2, 1), value) for value in (0.0, 1.0, 3.0))
    score = relative_score("x", one, near, far, MASK[:2, :1], np.array([[1, 1], [2, 0]]))
    deviation = np.std([0, 0, 1, 1, 3, 3])
    assert score.to_retrained == pytest.approx(2 * 1 / deviation)
    assert score.to_original == pytest.approx(2 * 3 / deviation)
    assert score.ratio == pytest.approx(1 / 3)
    # Of two resamples one has no pair: neither is nearer there.
    assert (score.p_nearer_to_retrained, score.p_nearer_to_original) == (2 / 3, 1)


def test_what_is_nearer_is_said() -> None:
    near, far = relative(0, 0.2, 0, 2), relative(0, 1.8, 0, 2)
    assert near.p_nearer_to_retrained == far.p_nearer_to_original == 1 / 200
    assert near.p_nearer_to_original > 0.9
    assert near.ratio == pytest.approx(max(near.to_retrained, 0) / near.to_original)
    assert near.to_retrained < 0.1 < 1 < near.to_original
    assert far.to_original < 0.1 < 1 < far.to_retrained


def test_the_original_itself_has_no_ratio() -> None:
    one, near = kinds(0, 0, 1)
    score = relative_score("x", one, near, one, MASK, draw_counts(16, seed=0, resamples=99))
    assert score.ratio is None
    assert score.p_nearer_to_original == 1 / 100


def test_midway_models_are_nearer_to_neither_but_at_the_nominal_rate() -> None:
    p_values = [relative(seed, 0.5, 0, 1).p_nearer_to_retrained for seed in range(200)]
    assert rejections(p_values, 0.05) in allowed_rejections(200, 0.05)
    assert rejections(p_values, 0.2) in allowed_rejections(200, 0.2)


def test_half_a_deviation_of_difference_is_seen_with_the_stated_power() -> None:
    """16 models that are 0.25 from one and 0.75 from the other: twenty samples see it in 95 %."""
    mask, p_values = np.ones((16, 20), dtype=bool), list[float]()
    for seed in range(100):
        counts = draw_counts(16, seed=seed, resamples=199)
        one, near, far = kinds(seed, 0.25, 0, 1, samples=20)
        score = relative_score("x", one, near, far, mask, counts)
        p_values.append(score.p_nearer_to_retrained)
    assert rejections(p_values, 0.05) in allowed_rejections(100, 0.95)
