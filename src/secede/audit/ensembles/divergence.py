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
    places = np.stack(bin_places(one, retrained, again))
    whole = np.ones(len(mask))
    value, null = (_summary(klom(places[k], places[1], mask, whole)) for k in (0, 2))
    draws = np.array([_excess(places, mask, row.astype(float)) for row in counts])
    return KlomScore(
        samples=samples,
        mean=value[0],
        tail=value[1],
        null_mean=null[0],
        null_tail=null[1],
        excess_mean=percentile_estimate(value[0] - null[0], draws[:, 0]),
        excess_tail=percentile_estimate(value[1] - null[1], draws[:, 1]),
        p_value=_swap_p_value(places, mask, value[0] - null[0], swaps),
    )


def bin_places(*kinds: Floats) -> list[NDArray[np.int64]]:
    """Return the bin of each margin: equal widths over each sample's range in all these kinds."""
    clipped = [np.clip(kind, -CLIP, CLIP) for kind in kinds]
    low = np.min([kind.min(axis=0) for kind in clipped], axis=0)
    width = np.max([kind.max(axis=0) for kind in clipped], axis=0) - low
    scale = np.where(width > 0, BINS / np.where(width > 0, width, 1), 0.0)
    return [np.minimum((scale * (kind - low)).astype(np.int64), BINS - 1) for kind in clipped]


def klom(
    one: NDArray[np.int64], retrained: NDArray[np.int64], mask: Booleans, weights: Floats
) -> Floats:
    """Return KL(one ‖ retrained) for each sample from bins, federations having these weights."""
    p, q = _shares(one, mask, weights), _shares(retrained, mask, weights)
    known = p.sum(axis=1) > 0
    ratio = np.log(np.maximum(p, LEAST_SHARE) / np.maximum(q, LEAST_SHARE))
    values: Floats = (p * ratio).sum(axis=1)[known]
    return values


def _shares(places: NDArray[np.int64], mask: Booleans, weights: Floats) -> Floats:
    samples = places.shape[1]
    spread = places + BINS * np.arange(samples)
    each = mask * weights[:, None]
    filled = np.bincount(spread.ravel(), weights=each.ravel(), minlength=BINS * samples)
    by_sample = filled.reshape(samples, BINS)
    shares: Floats = by_sample / np.maximum(by_sample.sum(axis=1, keepdims=True), 1e-300)
    return shares


def _summary(values: Floats) -> tuple[float, float]:
    return float(values.mean()), float(np.quantile(values, TAIL))


def _excess(places: NDArray[np.int64], mask: Booleans, weights: Floats) -> tuple[float, float]:
    one, again = (_summary(klom(places[k], places[1], mask, weights)) for k in (0, 2))
    return one[0] - again[0], one[1] - again[1]


def _swap_p_value(
    places: NDArray[np.int64], mask: Booleans, observed: float, swaps: Swaps
) -> float:
    """Return how often swapped labels leave as much excess, in either direction of the swap."""
    whole = np.ones(len(mask))
    draws = []
    for signs in swaps.signs:
        kept = (signs > 0)[:, None]
        swapped = np.where(kept, places[0], places[2]), np.where(kept, places[2], places[0])
        one, again = (klom(kind, places[1], mask, whole).mean() for kind in swapped)
        draws.append(float(one - again))
    # Swapping all labels turns the sign: with the first never swapped, both signs are all swaps.
    both = Swaps(np.concatenate([swaps.signs, -swaps.signs]), exact=swaps.exact)
    return both.p_value(observed, np.concatenate([draws, np.negative(draws)]))
