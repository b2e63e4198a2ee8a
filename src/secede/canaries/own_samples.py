"""Canaries of the client's own samples: mislabelled ones, and twins of which one is withheld.

They are taken out of the client's training, and only what the coin drew goes back in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from secede.canaries.canary import Canary, toss
from secede.canaries.coins import shuffled
from secede.canaries.made_up import MAXIMUM_CANDIDATES
from secede.canaries.pool import Pool
from secede.errors import ConfigError

Drawn = tuple[list[Canary], set[int]]  # canaries, and the places of own samples they replace


def mislabelled(pool: Pool, secret: bytes, count: int, *, classes: int | None = None) -> Drawn:
    """Return own samples with a label by coin among the others than their own."""
    if not pool.labels:
        raise ConfigError("canaries: only samples with classes can be mislabelled")
    labels = torch.unique(pool.y) if classes is None else torch.arange(classes, dtype=pool.y.dtype)
    if len(labels) < 3:
        raise ConfigError("canaries: mislabelled samples need at least three classes")
    rows = shuffled(secret, len(pool.y), "own")[:count]
    if len(rows) < count:
        raise ConfigError(f"canaries: {len(rows)} samples, too few for {count} canaries")
    canaries = []
    for index, row in enumerate(rows):
        others = _at_most(labels[labels != pool.y[row]], secret, index)
        coins = toss(secret, index, len(others))
        canaries.append(Canary(pool.x[row : row + 1].clone(), others, *coins))
    return canaries, {pool.places[row] for row in rows}


def withheld_twins(pool: Pool, secret: bytes, count: int) -> Drawn:
    """Return pairs of own samples with the same label; training gets the one that is drawn."""
    if not pool.labels:
        raise ConfigError("canaries: only samples with classes have twins of the same class")
    waiting: dict[int, int] = {}
    pairs: list[tuple[int, int]] = []
    for row in shuffled(secret, len(pool.y), "own"):
        twin = waiting.pop(int(pool.y[row]), None)
        if twin is None:
            waiting[int(pool.y[row])] = row
        else:
            pairs.append((twin, row))
    if len(pairs) < count:
        raise ConfigError(f"canaries: {len(pairs)} pairs of a class, too few for {count} canaries")
    canaries = [
        Canary(pool.x[list(pair)].clone(), pool.y[list(pair)].clone(), *toss(secret, index, 2))
        for index, pair in enumerate(pairs[:count])
    ]
    return canaries, {pool.places[row] for pair in pairs[:count] for row in pair}


def _at_most(labels: Tensor, secret: bytes, index: int) -> Tensor:
    if len(labels) <= MAXIMUM_CANDIDATES:
        return labels
    return labels[sorted(shuffled(secret, len(labels), "labels", index)[:MAXIMUM_CANDIDATES])]
