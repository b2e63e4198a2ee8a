"""A canary: candidates, of which a coin drew the one that the client trains on.

Everything here is the client's secret. The server sees a commitment to `canary_rows` and counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from secede.canaries.coins import coin, generator
from secede.canaries.options import CanaryOptions

_ROW_VERSION = 1


@dataclass(frozen=True, eq=False)
class Canary:
    """K candidates, the one drawn, and one opponent among the others.

    `inputs` has a row for each candidate, or one row that all candidates share.
    """

    inputs: Tensor  # (K or 1, *shape)
    targets: Tensor  # (K, ...)
    drawn: int
    opponent: int

    @property
    def candidates(self) -> int:
        """The number of candidates K."""
        return len(self.targets)

    @property
    def drawn_input(self) -> Tensor:
        """The input that the client trains on."""
        return self.inputs[self.drawn if len(self.inputs) > 1 else 0]

    @property
    def drawn_target(self) -> Tensor:
        """The target that the client trains on."""
        return self.targets[self.drawn]


@dataclass(frozen=True, eq=False)
class Canaries:
    """A client's canaries, and all that is needed to read them without the client's data."""

    secret: bytes = field(repr=False)
    options: CanaryOptions
    canaries: tuple[Canary, ...] = field(repr=False)
    low: Tensor = field(repr=False)  # the least and the largest value of the client's inputs,
    high: Tensor = field(repr=False)  # in a shape that broadcasts to an input's

    def __len__(self) -> int:
        return len(self.canaries)

    def training_copies(self, copies: int) -> tuple[Tensor, Tensor]:
        """Return the noisy inputs and the targets of all copies that the client trains on."""
        inputs = [
            self._noisy(canary.drawn_input, "copy", index, number)
            for index, canary in enumerate(self.canaries)
            for number in range(copies)
        ]
        targets = [canary.drawn_target for canary in self.canaries for _ in range(copies)]
        return torch.stack(inputs), torch.stack(targets)

    def fresh_copies(self, index: int, copies: int) -> Tensor:
        """Return noisy inputs of canary `index` that nobody trained on: (copies, K or 1, *shape).

        All candidates get the same noise.
        """
        inputs = self.canaries[index].inputs
        return torch.stack(
            [
                torch.stack([self._noisy(row, "reading", index, number) for row in inputs])
                for number in range(copies)
            ]
        )

    def _noisy(self, row: Tensor, *name: str | int) -> Tensor:
        """Return a row with uniform noise, within the data's range; tokens stay as they are."""
        if not self.options.noise or not _is_continuous(row):
            return row.clone()
        draw = generator(self.secret, *name).random(tuple(row.shape))
        width = self.options.noise * 12**0.5  # of a uniform distribution with that deviation
        low, high = self.low.double(), self.high.double()
        noisy = row.double() + (high - low) * width * (torch.from_numpy(draw) - 0.5)
        return as_values(noisy.maximum(low).minimum(high), row.dtype)


def toss(secret: bytes, index: int, candidates: int) -> tuple[int, int]:
    """Return the coins of canary `index`: which candidate is drawn, and its opponent."""
    drawn = coin(secret, candidates, "drawn", index)
    opponent = coin(secret, candidates - 1, "opponent", index)
    return drawn, opponent + (opponent >= drawn)


def canary_rows(canaries: Canaries) -> Iterator[bytes]:
    """Yield the bytes of each canary, for a commitment to all of them with `canaries.secret`."""
    for canary in canaries.canaries:
        tensors = (canary.inputs, canary.targets, canaries.low, canaries.high)
        header = {
            "coins": [canary.drawn, canary.opponent],
            "noise": float(canaries.options.noise),
            "tensors": [[str(value.dtype), list(value.shape)] for value in tensors],
            "version": _ROW_VERSION,
        }
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        yield len(text).to_bytes(8) + text + b"".join(map(tensor_bytes, tensors))


def tensor_bytes(value: Tensor) -> bytes:
    """Return a tensor's values as bytes."""
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def as_values(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers in a tensor's own type; bytes are rounded."""
    return (values.round() if dtype == torch.uint8 else values).to(dtype)


def _is_continuous(row: Tensor) -> bool:
    return row.is_floating_point() or row.dtype == torch.uint8
