"""What canaries are drawn from: some of the client's own samples, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secede.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Pool:
    """Inputs and targets of own samples, and the places that these have in the client's data."""

    x: Tensor
    y: Tensor
    places: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.x) == len(self.y) == len(self.places) or self.x.ndim < 2:
            raise ConfigError(
                f"canaries: inputs of shape {tuple(self.x.shape)} and targets of shape "
                f"{tuple(self.y.shape)}, expected a row and a target for each sample"
            )
        if self.x.is_floating_point() and not bool(self.x.isfinite().all()):
            raise ConfigError("canaries: the client's inputs hold NaN or infinite values")

    @property
    def tokens(self) -> bool:
        """Whether inputs are token ids: whole numbers other than bytes."""
        return not self.x.is_floating_point() and self.x.dtype != torch.uint8

    @property
    def labels(self) -> bool:
        """Whether targets are classes: one whole number for each sample."""
        return self.y.ndim == 1 and not self.y.is_floating_point()

    def limits(self) -> tuple[Tensor, Tensor]:
        """Return the least and the largest value of inputs, in a shape that broadcasts to one.

        Of a table for each column, of images for each channel.
        """
        if self.tokens:
            return torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        axis = 0 if self.x.ndim == 2 else channel_axis(tuple(self.x.shape[1:]))
        others = [d for d in range(self.x.ndim) if axis is None or d != axis + 1]
        low, high = self.x.amin(others, keepdim=True)[0], self.x.amax(others, keepdim=True)[0]
        return low.cpu().double(), high.cpu().double()


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return which dimension of an image is its channels, first or last; None without channels."""
    if len(shape) != 3:
        return None
    return 2 if shape[2] <= 4 < shape[0] else 0
