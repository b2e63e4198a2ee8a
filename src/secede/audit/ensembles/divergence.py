"""KLoM: how far the margins of a sample are from those under retraining (Georgiev et al. 2025).

"Attribute-to-Delete", ICLR 2025, section 3: KL(erased ‖ retrained) between histograms of a sample's
margins, 20 bins over their joint range, margins clipped at ±100 and shares from below at 1e-5. Few
models fill few bins, so that retraining has a KLoM as well: what counts is the *excess* over that
of the models retrained again, compared by swapping these with the judged ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secede.audit.ensembles.bootstrap import Estimate, Swaps, percentile_estimate
from secede.audit.ensembles.margins import Booleans, Floats

Places = NDArray[np.int64]

BINS = 20
CLIP = 100.0
LEAST_SHARE = 1e-5
TAIL = 0.95


@dataclass(frozen=True, kw_only=True)
class KlomScore:
    """KLoM over a set of samples, mean and 95th percentile, beside that of retraining again."""

    samples: str
    mean: float
    tail: float
    null_mean: float
    null_tail: float
    excess_mean: Estimate
    excess_tail: Estimate
    p_value: float  # of the excess mean, by swaps with the models retrained again


def klom_score(
    samples: str,
    one: Floats,
    retrained: Floats,
    again: Floats,
    mask: Booleans,
    counts: NDArray[np.int64],
    swaps: Swaps,
) -> KlomScore:
    """Return KLoM and its excess, with an interval over federations."""
    places = bin_places(one, retrained, again)
    bins = _Bins(places[0], places[1], places[2], mask)
    value, null = bins.summaries(np.ones(len(mask)))
    excess = value[0] - null[0], value[1] - null[1]
    draws = np.array([np.subtract(*bins.summaries(row.astype(float))) for row in counts])
    return KlomScore(
        samples=samples,
        mean=value[0],
        tail=value[1],
        null_mean=null[0],
        null_tail=null[1],
        excess_mean=percentile_estimate(excess[0], draws[:, 0], models=len(mask)),
        excess_tail=percentile_estimate(excess[1], draws[:, 1], models=len(mask)),
        p_value=bins.swap_p_value(excess[0], swaps),
    )


def bin_places(*kinds: Floats) -> list[Places]:
    """Return the bin of each margin: equal widths over each sample's range in all these kinds."""
    clipped = [np.clip(kind, -CLIP, CLIP) for kind in kinds]
    low = np.min([kind.min(axis=0) for kind in clipped], axis=0)
    width = np.max([kind.max(axis=0) for kind in clipped], axis=0) - low
    scale = np.where(width > 0, BINS / np.where(width > 0, width, 1), 0.0)
    return [np.minimum((scale * (kind - low)).astype(np.int64), BINS - 1) for kind in clipped]


def klom(p: Floats, q: Floats) -> Floats:
    """Return KL(p ‖ q) for each sample (samples by bins), those that nobody is asked left out."""
    ratio = np.log(np.maximum(p, LEAST_SHARE) / np.maximum(q, LEAST_SHARE))
    values: Floats = (p * ratio).sum(axis=1)[p.any(axis=1)]
    return values


def shares(places: Places, mask: Booleans, weights: Floats) -> Floats:
    """Return the share of each bin (samples by bins), federations having these weights."""
    samples = places.shape[1]
    spread = places + BINS * np.arange(samples)
    each = mask * weights[:, None]
    filled = np.bincount(spread.ravel(), weights=each.ravel(), minlength=BINS * samples)
    by_sample = filled.reshape(samples, BINS)
    found: Floats = by_sample / np.maximum(by_sample.sum(axis=1, keepdims=True), 1e-300)
    return found


@dataclass(frozen=True)
class _Bins:
    one: Places
    retrained: Places
    again: Places
    mask: Booleans

    def summaries(self, weights: Floats) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return mean and tail of KLoM: of the judged models, of those retrained again."""
        q = shares(self.retrained, self.mask, weights)
        values = [klom(shares(kind, self.mask, weights), q) for kind in (self.one, self.again)]
        first, second = ((float(v.mean()), float(np.quantile(v, TAIL))) for v in values)
        return first, second

    def swap_p_value(self, observed: float, swaps: Swaps) -> float:
        """Return how often swaps with the models retrained again leave as much excess."""
        whole = np.ones(len(self.mask))
        q = shares(self.retrained, self.mask, whole)
        draws = []
        for signs in swaps.signs:
            kept = (signs > 0)[:, None]
            one = np.where(kept, self.one, self.again)
            again = np.where(kept, self.again, self.one)
            means = [klom(shares(kind, self.mask, whole), q).mean() for kind in (one, again)]
            draws.append(means[0] - means[1])
        # Swapping all labels turns the sign: with the first never swapped, both signs are all.
        both = np.concatenate([draws, np.negative(draws)])
        return Swaps(np.concatenate([swaps.signs, -swaps.signs]), swaps.exact).p_value(
            observed, both
        )
