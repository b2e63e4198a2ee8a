"""Energy distance between two kinds of models, and the swap test whether there is any.

Székely and Rizzo 2013, equation 5: E = 2 E|X − Y| − E|X − X'| − E|Y − Y'|, a model being the vector
of its margins on samples that both models of a pair were asked, in deviations of each sample.
Models of one federation share its deal and are never paired with each other, so that E is not
biased and can be negative. Swapping the labels within federations gives the exact p value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secede.audit.ensembles.bootstrap import Swaps
from secede.audit.ensembles.margins import Booleans, Floats
from secede.errors import DataError


@dataclass(frozen=True, kw_only=True)
class EnergyScore:
    """The energy distance from the retrained models, beside that of those retrained again."""

    samples: str
    distance: float
    null_distance: float
    p_value: float
    exact: bool


def energy_score(
    samples: str, one: Floats, retrained: Floats, again: Floats, mask: Booleans, swaps: Swaps
) -> EnergyScore:
    """Return the distance of one kind from the retrained, and whether that is chance."""
    terms = pair_terms(one, retrained, mask)
    draws = np.einsum("si,si->s", swaps.signs @ terms, swaps.signs)
    return EnergyScore(
        samples=samples,
        distance=energy_distance(one, retrained, mask),
        null_distance=energy_distance(again, retrained, mask),
        p_value=swaps.p_value(float(terms.sum()), draws),
        exact=swaps.exact,
    )


def energy_distance(one: Floats, other: Floats, mask: Booleans) -> float:
    """Return the energy distance of two kinds over pairs of different federations."""
    terms = pair_terms(one, other, mask)
    return float(terms.sum() / (len(terms) * (len(terms) - 1)))


def pair_terms(
    one: Floats, other: Floats, mask: Booleans, *, deviations: Floats | None = None
) -> Floats:
    """Return for each pair of federations what it adds; its sign turns if one of both is swapped.

    That is |X − Y'| + |Y − X'| − |X − X'| − |Y − Y'|. Federations are asked what `mask` says.
    `deviations`, by sample, are those of both kinds together unless given.
    """
    if deviations is None:
        deviations = sample_deviations(mask, one, other)
    scale = np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 0)
    centre = (one.mean(axis=0) + other.mean(axis=0)) / 2
    x, y = (np.where(mask, (kind - centre) * scale, 0.0) for kind in (one, other))
    shared = mask.astype(float) @ mask.T.astype(float)
    if not shared[~np.eye(len(shared), dtype=bool)].all():
        raise DataError("two federations have no sample in common: deal from a smaller pool")
    across = _distances(x, y, mask, shared)
    terms = across + across.T - _distances(x, x, mask, shared) - _distances(y, y, mask, shared)
    np.fill_diagonal(terms, 0.0)
    return terms


def sample_deviations(mask: Booleans, *kinds: Floats) -> Floats:
    """Return each sample's deviation over all models of these kinds that are asked it."""
    count = np.maximum(len(kinds) * mask.sum(axis=0), 1)
    mean = sum(np.where(mask, kind, 0.0).sum(axis=0) for kind in kinds) / count
    squares = sum(np.where(mask, (kind - mean) ** 2, 0.0).sum(axis=0) for kind in kinds)
    deviations: Floats = np.sqrt(squares / count)
    return deviations


def _distances(x: Floats, y: Floats, mask: Booleans, shared: Floats) -> Floats:
    """Return root mean squared differences on shared samples; both are 0 where not asked."""
    asked = mask.astype(float)
    squares = (x**2) @ asked.T + asked @ (y**2).T - 2 * x @ y.T
    distances: Floats = np.sqrt(np.maximum(squares, 0.0) / np.maximum(shared, 1))
    return distances
