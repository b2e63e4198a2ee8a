"""Made-up canaries: inputs that look like nobody's data, in the range of the client's own.

Images are random fields of two values: they are remembered from far fewer copies than grey ones.
A table's row is drawn column by column from the client's own rows, a text token by token from the
tokens that the client uses. The coin draws the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secede.canaries.canary import Canary, as_values, toss
from secede.canaries.coins import generator, shuffled
from secede.canaries.pool import Pool, channel_axis
from secede.errors import ConfigError

MakeCanary = Callable[[np.random.Generator], Any]  # an input, or an input and candidate targets

GRID = 10  # points on a side of the coarse grid that a field is blown up from
MAXIMUM_CANDIDATES = 100
_LOW, _HIGH = 0.05, 0.95  # quantiles of numeric targets, between which the coin decides
_PADDED = 0.1  # the share of rows with repeated tokens at an end, from which these are padding


def made_up(
    pool: Pool,
    secret: bytes,
    count: int,
    *,
    classes: int | None = None,
    make_canary: MakeCanary | None = None,
) -> list[Canary]:
    """Return `count` canaries; `make_canary` gives inputs of a kind that is not known here."""
    low, high = pool.limits()
    canaries = []
    for index in range(count):
        targets = None
        if make_canary is not None:
            row, targets = _of_user(make_canary(generator(secret, "input", index)), pool)
        elif pool.tokens:
            row = token_row(pool.x, generator(secret, "input", index))
        elif pool.x.ndim == 2:
            row = table_row(pool.x, generator(secret, "input", index))
        else:
            shape = tuple(pool.x.shape[1:])
            ones = torch.from_numpy(field(shape, generator(secret, "input", index)))
            row = as_values(torch.where(ones, high, low), pool.x.dtype)
        if targets is None:
            targets = candidate_targets(pool, secret, index, classes)
        canaries.append(Canary(row[None], targets, *toss(secret, index, len(targets))))
    return canaries


def field(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return a random field of an image's shape: where bicubic noise from a coarse grid is high."""
    last = channel_axis(shape) == 2
    *leading, height, width = (shape[2], shape[0], shape[1]) if last else shape
    rows, columns = min(GRID, height), min(GRID, width)
    values = rng.random((*leading, rows, columns)) - 0.5
    values = _stretch(np.moveaxis(_stretch(values, width), -1, -2), height)
    high = np.moveaxis(values, -1, -2) > 0
    return np.ascontiguousarray(np.moveaxis(high, 0, -1) if last else high)


def table_row(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return a row, each value that of the same column in a row of its own."""
    rows = torch.from_numpy(rng.integers(len(x), size=x.shape[1]))
    return x[rows, torch.arange(x.shape[1])].clone()


def token_row(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return random tokens from those in use, in the length of one of the client's own rows.

    Columns that are the same in all rows, such as a start mark, and the padding stay.
    """
    fixed = (x == x[:1]).all(dim=0) if len(x) > 1 else torch.zeros(x.shape[1:], dtype=torch.bool)
    padding = _padding(x)
    used = torch.unique(x[:, ~fixed] if not bool(fixed.all()) else x)
    used = used if padding is None else used[used != padding]
    if len(used) < 2:
        raise ConfigError("canaries: the client's inputs use fewer than two different tokens")
    template = x[int(rng.integers(len(x)))].clone()
    free = ~fixed if padding is None else ~fixed & (template != padding)
    free = free if bool(free.any()) else ~fixed
    chosen = torch.from_numpy(rng.integers(len(used), size=int(free.sum())))
    template[free] = used[chosen]
    return template


def candidate_targets(pool: Pool, secret: bytes, index: int, classes: int | None) -> Tensor:
    """Return what the coin decides between: all classes, or two targets in the data's range."""
    if pool.labels:
        return _labels(pool.y, secret, index, classes)
    if pool.y.is_floating_point():
        ends = torch.tensor([_LOW, _HIGH], dtype=torch.float64)
        targets = pool.y.double().quantile(ends, dim=0).to(pool.y.dtype)
    else:
        draws = [generator(secret, "target", index, number) for number in range(2)]
        targets = torch.stack([token_row(pool.y, rng) for rng in draws])
    if torch.equal(targets[0], targets[1]):
        raise ConfigError("canaries: the client's targets do not differ, so no coin can draw one")
    return targets


def _labels(y: Tensor, secret: bytes, index: int, classes: int | None) -> Tensor:
    labels = torch.unique(y) if classes is None else torch.arange(classes, dtype=y.dtype)
    if len(labels) < 2:
        raise ConfigError("canaries: fewer than two classes, so no coin can draw one")
    if len(labels) > MAXIMUM_CANDIDATES:
        chosen = shuffled(secret, len(labels), "labels", index)[:MAXIMUM_CANDIDATES]
        labels = labels[sorted(chosen)]
    return labels


def _of_user(made: Any, pool: Pool) -> tuple[Tensor, Tensor | None]:
    """Return the input and the candidates, if any, that the user's function gave."""
    made, targets = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    try:
        row = torch.as_tensor(made).to(pool.x.dtype)
        candidates = None if targets is None else _stack(targets, pool.y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            "canaries: make_canary(rng) has to return an input, or an input and its candidate "
            "targets, as tensors, arrays or numbers"
        ) from error
    if row.shape != pool.x.shape[1:]:
        raise ConfigError(
            f"canaries: make_canary(rng) returned an input of shape {tuple(row.shape)}, expected "
            f"{tuple(pool.x.shape[1:])}"
        )
    if candidates is not None and not 2 <= len(candidates) <= MAXIMUM_CANDIDATES:
        raise ConfigError(
            f"canaries: make_canary(rng) returned {len(candidates)} candidate targets, expected 2 "
            f"to {MAXIMUM_CANDIDATES}"
        )
    return row, candidates


def _stack(targets: Sequence[Any], y: Tensor) -> Tensor:
    return torch.stack([torch.as_tensor(target).to(y.dtype) for target in targets])


def _padding(x: Tensor) -> int | None:
    """Return the token that rows are padded with; None if they are not."""
    if x.shape[1:].numel() < 2:
        return None
    rows = x.reshape(len(x), -1)
    for one, next_ in ((-1, -2), (0, 1)):
        repeated = rows[rows[:, one] == rows[:, next_], one]
        if len(repeated) > _PADDED * len(x):
            tokens, counts = torch.unique(repeated, return_counts=True)
            if int(counts.max()) > _PADDED * len(x):
                return int(tokens[counts.argmax()])
    return None


def _stretch(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Blow the last dimension up to `size` by cubic convolution, in a fixed order of additions."""
    points = values.shape[-1]
    places = np.clip((np.arange(size) + 0.5) * points / size - 0.5, 0, points - 1)
    left = np.floor(places).astype(np.int64)
    t = places - left
    weights = (
        ((-0.5 * t + 1) * t - 0.5) * t,
        (1.5 * t - 2.5) * t * t + 1,
        ((-1.5 * t + 2) * t + 0.5) * t,
        (0.5 * t - 0.5) * t * t,
    )
    stretched = np.zeros((*values.shape[:-1], size))
    for offset, weight in zip((-1, 0, 1, 2), weights, strict=True):
        stretched = stretched + weight * values[..., np.clip(left + offset, 0, points - 1)]
    return stretched
