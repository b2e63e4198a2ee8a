"""Ensembles of margins whose truth is known, and the rates at which tests may reject."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import binom

from secede.audit.ensembles.margins import Ensemble, Ensembles, Floats


def synthetic(
    models: int = 8,
    *,
    pool: int = 80,
    retained: int = 30,
    test: int = 40,
    seed: int = 0,
    original: float = 1.0,
    remembered: float = 0.0,
    shift: float = 0.0,
) -> Ensembles:
    """Return ensembles in deviations of each sample's margin.

    Members rise by `original` in the original models and by `remembered` in the erased ones, whose
    margins on all samples are shifted besides. Models have a common factor, samples a difficulty.
    """
    rng = np.random.default_rng(seed)
    member = rng.random((models, pool)) < 0.5
    sizes = {"pool": pool, "retained": retained, "test": test}
    ease = {name: rng.normal(4, 2, size) for name, size in sizes.items()}
    spread = {name: np.exp(rng.normal(0, 0.4, size)) for name, size in sizes.items()}

    def kind(rise: float, shifted: float) -> dict[str, Floats]:
        margins = {}
        for name, size in sizes.items():
            noise = rng.normal(size=(models, size)) + rng.normal(0, 0.3, (models, 1)) + shifted
            noise = noise + rise * member if name == "pool" else noise
            margins[name] = ease[name] + spread[name] * noise
        return margins

    margins: dict[Ensemble, dict[str, Floats]] = {
        "original": kind(original, 0),
        "erased": kind(remembered, shift),
        "retrained": kind(0, 0),
        "retrained-again": kind(0, 0),
    }
    clean = {name: rng.normal(97, 0.2, models) for name in margins}
    return Ensembles(
        margins=margins,  # type: ignore[arg-type]
        member=member,
        scalars={"clean accuracy": clean},
    )


def allowed_rejections(draws: int, level: float) -> range:
    """Return how many of so many draws a test of this level may reject, but once in 1,000 each."""
    low, high = (int(binom.ppf(tail, draws, level)) for tail in (0.001, 0.999))
    return range(low, high + 1)


def rejections(p_values: Sequence[float], level: float) -> int:
    """Return how many p values are at most the level."""
    return int(np.sum(np.asarray(p_values) <= level + 1e-12))
