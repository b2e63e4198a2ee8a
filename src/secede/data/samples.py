"""Samples and data sets as plain tensors: what every client, scenario and measure works on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secede.errors import DataError


@dataclass(frozen=True)
class Samples:
    """Inputs `x` (n, *shape), float32 in [0, 1] for images, and int64 labels `y` (n,)."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.y.ndim != 1 or len(self.x) != len(self.y):
            raise DataError(
                f"expected one label per sample, got inputs of shape {tuple(self.x.shape)} "
                f"and labels of shape {tuple(self.y.shape)}"
            )
        if self.y.is_floating_point():
            raise DataError(f"labels are {self.y.dtype}, expected classes as whole numbers")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch dimension."""
        return tuple(self.x.shape[1:])

    def take(self, indices: Tensor) -> Samples:
        """Return the samples at `indices` (or where a mask is true), in that order."""
        return Samples(self.x[indices], self.y[indices])

    def to(self, device: torch.device | str) -> Samples:
        """Return the same samples on `device`."""
        return Samples(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Dataset:
    """A named data set: training samples, test samples and the names of its classes."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        for part, samples in (("training", self.train), ("test", self.test)):
            if len(samples) == 0:
                raise DataError(f"{self.name}: the {part} part is empty")
            low, high = int(samples.y.min()), int(samples.y.max())
            if low < 0 or high >= len(self.classes):
                raise DataError(
                    f"{self.name}: {part} labels run from {low} to {high}, "
                    f"expected 0 to {len(self.classes) - 1}"
                )
        if self.train.shape != self.test.shape:
            raise DataError(
                f"{self.name}: training inputs have shape {self.train.shape}, "
                f"test inputs {self.test.shape}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.train.shape

    def limited(self, count: int, generator: torch.Generator) -> Dataset:
        """Return at most `count` training and `count` test samples, drawn at random."""

        def draw(samples: Samples) -> Samples:
            chosen = torch.randperm(len(samples), generator=generator)[:count]
            return samples.take(chosen.sort().values)

        return Dataset(self.name, draw(self.train), draw(self.test), self.classes)
