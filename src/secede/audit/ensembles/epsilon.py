"""Epsilon per example, after the NeurIPS 2023 unlearning challenge (Triantafillou et al. 2024).

For each sample every threshold on the margin, in both directions, tries to tell erased from
retrained models; epsilon is the largest log((1 − δ − FPR) / FNR) or log((1 − δ − FNR) / FPR), at
least 0. As in the challenge both rates are plugged in and a threshold with one rate of 0 is not
used; where both are 0 epsilon is the cap, the logarithm of the number of models: no more can be
seen with so many. The challenge's intervals (two thresholds) are left out. The plug-in is a
maximum over thresholds and large by chance: read it beside the models retrained again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secede.audit.ensembles.margins import Booleans, Floats

DELTA = 1e-5
_BIN = 0.5  # of epsilon, in the challenge's forgetting quality
_LAST_BIN = 13
_BLOCK = 2000  # samples at once


@dataclass(frozen=True, kw_only=True)
class EpsilonSummary:
    """How epsilon is spread over samples, and the challenge's forgetting quality (1 is best)."""

    mean: float
    median: float
    tail: float  # 95th percentile
    capped_share: float
    forgetting_quality: float


@dataclass(frozen=True, kw_only=True)
class EpsilonScore:
    """Epsilon of the judged models, and that of the models retrained again."""

    samples: str
    erased: EpsilonSummary
    null: EpsilonSummary


def epsilon_score(
    samples: str, one: Floats, retrained: Floats, again: Floats, mask: Booleans
) -> EpsilonScore:
    """Return the spread of epsilon against the retrained models, beside its null."""
    return EpsilonScore(
        samples=samples,
        erased=summary(*epsilons(one, retrained, mask)),
        null=summary(*epsilons(again, retrained, mask)),
    )


def epsilons(one: Floats, retrained: Floats, mask: Booleans) -> tuple[Floats, Booleans]:
    """Return epsilon of each sample, and where it is the cap; samples nobody is asked are out."""
    asked = mask.any(axis=0)
    one, retrained, mask = one[:, asked], retrained[:, asked], mask[:, asked]
    starts = range(0, mask.shape[1], _BLOCK)
    blocks = [slice(start, start + _BLOCK) for start in starts]
    parts = [_epsilons(one[:, b], retrained[:, b], mask[:, b]) for b in blocks]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _epsilons(one: Floats, retrained: Floats, mask: Booleans) -> tuple[Floats, Booleans]:
    margins = np.concatenate([one, retrained])
    models = np.tile(mask.sum(axis=0), (2, 1))
    margins = np.where(np.concatenate([mask, mask]), margins, np.inf)  # behind every threshold
    order = np.argsort(margins, axis=0)
    ordered = np.take_along_axis(margins, order, axis=0)
    erased = order < len(one)
    counted = np.isfinite(ordered)
    below_one = np.cumsum(erased & counted, axis=0) / models[0]
    below_other = np.cumsum(~erased & counted, axis=0) / models[1]
    ends = counted & np.concatenate([ordered[1:] > ordered[:-1], np.ones_like(counted[:1])])
    low, low_parts = _rule(below_other, 1 - below_one, ends)
    high, high_parts = _rule(1 - below_other, below_one, ends)
    parted, cap = low_parts | high_parts, np.log(models[0])
    return np.where(parted, cap, np.minimum(np.maximum(low, high), cap)), parted


def _rule(false: Floats, missed: Floats, ends: Booleans) -> tuple[Floats, Booleans]:
    """Return the best epsilon of each sample, and whether a threshold parts both kinds."""
    tiny = 1e-12
    perfect: Booleans = np.asarray((ends & (false < tiny) & (missed < tiny)).any(axis=0))
    used = ends & (false > tiny) & (missed > tiny)
    safe_false, safe_missed = np.where(used, false, 1.0), np.where(used, missed, 1.0)
    first = np.maximum(1 - DELTA - safe_false, tiny) / safe_missed
    second = np.maximum(1 - DELTA - safe_missed, tiny) / safe_false
    values = np.where(used, np.log(np.maximum(first, second)), 0.0)
    return np.maximum(values.max(axis=0), 0.0), perfect


def forgetting_quality(epsilon: Floats) -> float:
    """Return the challenge's score: 2 / 2^bin of each sample, the first bin ending at 0.5."""
    bins = np.minimum(np.floor(epsilon / _BIN) + 1, _LAST_BIN)
    return float(np.mean(2.0 ** (1 - bins)))


def summary(epsilon: Floats, capped: Booleans) -> EpsilonSummary:
    """Return the spread of epsilon over samples."""
    return EpsilonSummary(
        mean=float(epsilon.mean()),
        median=float(np.median(epsilon)),
        tail=float(np.quantile(epsilon, 0.95)),
        capped_share=float(capped.mean()),
        forgetting_quality=forgetting_quality(epsilon),
    )
