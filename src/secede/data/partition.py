"""Deal a data set's samples to clients: disjoint indices, drawn from a seeded generator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secede.errors import ConfigError, DataError

_DRAWS = 10_000


def equal(count: int, clients: int, generator: torch.Generator) -> list[Tensor]:
    """Deal all samples in parts whose sizes differ by at most one."""
    _check_enough(count, clients, 1)
    return list(torch.randperm(count, generator=generator).tensor_split(clients))


def by_sizes(count: int, sizes: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """Deal parts of the given sizes; samples beyond their sum stay unused."""
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"sizes are {list(sizes)}, expected at least one sample for each client")
    if sum(sizes) > count:
        raise DataError(
            f"the sizes {list(sizes)} ask for {sum(sizes):,} samples, the data set has {count:,}"
        )
    dealt = torch.randperm(count, generator=generator)
    return list(dealt.tensor_split(list(accumulate(sizes))))[:-1]


def dirichlet(
    labels: Tensor, clients: int, alpha: float, generator: torch.Generator, *, minimum: int = 1
) -> list[Tensor]:
    """Deal all samples with skewed labels: each class is shared out by its own Dirichlet draw.

    The smaller `alpha`, the stronger the skew. Draws that leave a client with fewer than
    `minimum` samples are rejected.
    """
    if not 0 < alpha < float("inf"):
        raise ConfigError(f"alpha is {alpha}, expected a number above 0")
    _check_enough(len(labels), clients, minimum)
    # torch has no public Dirichlet sampler that takes a generator, so numpy draws.
    seed = int(torch.randint(2**62, (), generator=generator))
    rng = np.random.default_rng(seed)
    y = labels.numpy(force=True)
    members = [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]
    cuts = _draw_cuts(np.array([len(each) for each in members]), clients, alpha, minimum, rng)
    parts = [np.split(each, cut) for each, cut in zip(members, cuts, strict=True)]
    return [
        torch.from_numpy(rng.permutation(np.concatenate(shares)))
        for shares in zip(*parts, strict=True)
    ]


def _draw_cuts(
    counts: NDArray[np.int64],
    clients: int,
    alpha: float,
    minimum: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return where each class (row) is cut so that every client gets its minimum."""
    for _ in range(_DRAWS):
        shares = rng.dirichlet([alpha] * clients, size=len(counts))
        ends = np.rint(shares.cumsum(axis=1) * counts[:, None]).astype(np.int64)
        ends[:, -1] = counts
        if np.diff(ends, axis=1, prepend=0).sum(axis=0).min() >= minimum:
            return ends[:, :-1]
    raise DataError(
        f"no Dirichlet draw of {_DRAWS:,} gave each of {clients} clients {minimum} samples or more "
        f"of {counts.sum():,}; use a larger alpha than {alpha}, fewer clients or a lower minimum"
    )


def _check_enough(count: int, clients: int, minimum: int) -> None:
    if clients < 1 or minimum < 1:
        raise ConfigError(f"{clients} clients with {minimum} samples or more, expected at least 1")
    if count < clients * minimum:
        raise DataError(
            f"the data set has {count:,} samples, too few for {clients} clients "
            f"with at least {minimum} each"
        )
