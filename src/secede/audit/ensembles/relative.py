"""Three samples of models: are the erased ones nearer to the retrained or to the original?

The relative test of Bounliphone et al. 2016, with energy distances in place of MMD: a two-sample
test condemns every difference, this one asks which way it goes. Federations are resampled, all
three kinds together; p is the share of resamples in which the original models are the nearer ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secede.audit.ensembles.energy import pair_terms, sample_deviations
from secede.audit.ensembles.margins import Booleans, Floats


@dataclass(frozen=True, kw_only=True)
class RelativeScore:
    """Energy distances to the retrained and to the original models, and which is smaller."""

    samples: str
    to_retrained: float
    to_original: float
    ratio: float | None  # to retrained by to original; None where that is chance
    p_nearer_to_retrained: float
    p_nearer_to_original: float


def relative_score(
    samples: str,
    one: Floats,
    retrained: Floats,
    original: Floats,
    mask: Booleans,
    counts: NDArray[np.int64],
) -> RelativeScore:
    """Return both distances, and how often resampled federations say otherwise."""
    deviations = sample_deviations(mask, one, retrained, original)
    near = pair_terms(one, retrained, mask, deviations=deviations)
    far = pair_terms(one, original, mask, deviations=deviations)
    weights = counts.astype(float)
    gaps = np.einsum("si,si->s", weights @ (near - far), weights)
    pairs = len(mask) * (len(mask) - 1)
    to_retrained, to_original = float(near.sum() / pairs), float(far.sum() / pairs)
    return RelativeScore(
        samples=samples,
        to_retrained=to_retrained,
        to_original=to_original,
        ratio=max(to_retrained, 0.0) / to_original if to_original > 0 else None,
        p_nearer_to_retrained=float((1 + np.sum(gaps >= 0)) / (1 + len(gaps))),
        p_nearer_to_original=float((1 + np.sum(gaps <= 0)) / (1 + len(gaps))),
    )
