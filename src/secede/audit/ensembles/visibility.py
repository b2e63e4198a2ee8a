"""Can a model be told from a retrained one, by its margins? A likelihood-ratio test per model.

The optimal test of one model (Hayes et al., SaTML 2025, section 3) with Gaussians for each sample:
both kinds have a mean of their own and one variance, and logarithms of the ratio add up over
samples. Both models of a federation are left out while their means are fitted, so that every answer
is out of sample. Without a difference half of the answers are right; the p value swaps the labels
within federations and is exact. The interval is Clopper–Pearson's with a federation as one answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

from secede.audit.ensembles.bootstrap import LEVEL, Estimate, Swaps
from secede.audit.ensembles.energy import sample_deviations
from secede.audit.ensembles.margins import Booleans, Floats


@dataclass(frozen=True, kw_only=True)
class ToldScore:
    """How often a model is told from a retrained one, by its margins on these samples."""

    samples: str
    accuracy: Estimate
    p_value: float
    chance_deviation: float  # of the accuracy over swaps
    chance_quantile: float  # of the accuracy over swaps, at the level asked for
    exact: bool

    def smallest_accuracy(self, *, power: float = 0.8) -> float | None:
        """Return the accuracy that the test sees with this power; None where none is enough."""
        seen = self.chance_quantile + float(ndtri(power)) * self.chance_deviation
        return seen if seen <= 1 else None


def told_score(
    samples: str, one: Floats, retrained: Floats, mask: Booleans, swaps: Swaps, *, level: float
) -> ToldScore:
    """Return the accuracy with its interval, and what swapped labels would give."""
    middle, half = ratio_parts(one, retrained, mask)
    observed = accuracies(middle, half, np.ones((1, len(mask))))[0]
    draws = accuracies(middle, half, swaps.signs)
    return ToldScore(
        samples=samples,
        accuracy=_with_interval(float(observed), len(mask)),
        p_value=swaps.p_value(float(observed), draws),
        chance_deviation=float(draws.std()),
        chance_quantile=float(np.quantile(draws, 1 - level, method="higher")),
        exact=swaps.exact,
    )


def ratio_parts(one: Floats, retrained: Floats, mask: Booleans) -> tuple[Floats, Floats]:
    """Return what federation k adds to the log ratios of federation i: of the middle, of the half.

    With x the middle of i's two models and d half their difference, the ratio of its first model
    is the sum over k of the first plus the second part, that of its second the first minus it.
    """
    middle, difference = (one + retrained) / 2, one - retrained
    asked = mask.astype(float)
    rest = np.maximum(asked.sum(axis=0) - 1, 0)  # federations that are asked, but for i
    total = np.where(mask, middle, 0.0).sum(axis=0)
    fitted = (total - middle) / np.maximum(rest, 1)
    variance = sample_deviations(mask, one, retrained) ** 2
    usable = mask & (rest > 0) & (variance > 0)
    weight = np.where(usable, 1 / np.where(variance > 0, variance * np.maximum(rest, 1), 1), 0.0)
    others = np.where(mask, difference, 0.0).T
    parts = ((middle - fitted) * weight) @ others, (difference / 2 * weight) @ others
    for part in parts:
        np.fill_diagonal(part, 0.0)
    return parts


def accuracies(middle: Floats, half: Floats, signs: Floats) -> Floats:
    """Return for each row of signs the share of models told right; a ratio of 1 counts half."""
    common, own = signs @ middle.T, signs * (signs @ half.T)
    right = np.sign(common + own) - np.sign(common - own)
    shares: Floats = 0.5 + right.mean(axis=1) / 4
    return shares


def _with_interval(accuracy: float, federations: int, level: float = LEVEL) -> Estimate:
    right, side = accuracy * federations, (1 - level) / 2
    low = float(beta.ppf(side, right, federations - right + 1)) if right > 0 else 0.0
    high = float(beta.isf(side, right + 1, federations - right)) if right < federations else 1.0
    return Estimate(accuracy, low, high)
