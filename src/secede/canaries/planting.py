"""Plant canaries in a client's samples: the same ones in every round, run and process.

They depend on the salt, the settings and the range and labels of the client's data: whoever
changes one of these in the course of a training plants others than were committed to.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from secede.canaries.canary import Canaries
from secede.canaries.coins import canary_secret, shuffled
from secede.canaries.made_up import MakeCanary, made_up
from secede.canaries.options import CanaryOptions, Size
from secede.canaries.own_samples import mislabelled, withheld_twins
from secede.canaries.pool import Pool
from secede.data import Samples


@dataclass(frozen=True, eq=False)
class Planted:
    """Samples to train on, and the canaries among them; without canaries the reason why."""

    samples: Samples
    canaries: Canaries | None = field(repr=False)
    reason: str = ""
    copies: int = 0  # of each canary


def plant(
    samples: Samples,
    salt: bytes,
    options: CanaryOptions | None = None,
    *,
    classes: int | None = None,
    make_canary: MakeCanary | None = None,
) -> Planted:
    """Return `samples` with canaries among them, in an order drawn from `salt`.

    A client that is too small gets its own samples back, and the reason. Without `classes` the
    coin decides among the labels that the client has.
    """
    options = options or CanaryOptions()
    size = options.size(len(samples))
    if size is None:
        return Planted(samples, None, options.why_too_small(len(samples)))
    pool = Pool(samples.x.cpu(), samples.y.cpu(), tuple(range(len(samples))))
    canaries, replaced = draw(pool, salt, options, size, classes=classes, make_canary=make_canary)
    inputs, targets = canaries.training_copies(size.copies)
    kept = torch.tensor([place for place in pool.places if place not in replaced])
    x = torch.cat([pool.x[kept], inputs])
    y = torch.cat([pool.y[kept], targets])
    order = torch.tensor(shuffled(canaries.secret, len(y), "order"))
    return Planted(Samples(x, y).take(order).to(samples.x.device), canaries, "", size.copies)


def draw(
    pool: Pool,
    salt: bytes,
    options: CanaryOptions,
    size: Size,
    *,
    classes: int | None = None,
    make_canary: MakeCanary | None = None,
) -> tuple[Canaries, set[int]]:
    """Return the canaries, and the places of own samples that these replace in training."""
    secret, replaced = canary_secret(salt), set[int]()
    if options.kind == "mislabelled":
        drawn, replaced = mislabelled(pool, secret, size.count, classes=classes)
    elif options.kind == "withheld-twins":
        drawn, replaced = withheld_twins(pool, secret, size.count)
    else:
        drawn = made_up(pool, secret, size.count, classes=classes, make_canary=make_canary)
    return Canaries(secret, options, tuple(drawn), *pool.limits()), replaced
