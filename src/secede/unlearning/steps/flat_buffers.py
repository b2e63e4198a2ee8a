"""Buffers as large as a model, laid out so that one operation reaches every parameter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class FlatBuffers:
    """One tensor per parameter, those of one dtype side by side in one piece of memory.

    `parts` are the pieces, one per dtype; `views` are the same numbers in the parameters' order
    and shapes. Two of them over the same parameters and equally wide have matching parts. `wide`
    means that float16 and bfloat16 are held in float32, as everywhere where they are measured.
    """

    def __init__(
        self, parameters: Sequence[Tensor], *, wide: bool = False, value: float = 0.0
    ) -> None:
        places: dict[torch.dtype, list[int]] = {}
        for place, parameter in enumerate(parameters):
            dtype = _wide(parameter.dtype) if wide else parameter.dtype
            places.setdefault(dtype, []).append(place)
        self.parts: list[Tensor] = []
        views: dict[int, Tensor] = {}
        for dtype, chosen in places.items():
            sizes = [parameters[place].numel() for place in chosen]
            part = torch.full((sum(sizes),), value, dtype=dtype, device=parameters[0].device)
            self.parts.append(part)
            for place, piece in zip(chosen, part.split(sizes), strict=True):
                views[place] = piece.view(parameters[place].shape)
        self.views = [views[place] for place in range(len(parameters))]

    def take(self, values: list[Tensor]) -> None:
        """Copy `values`, one per parameter."""
        torch._foreach_copy_(self.views, values)

    def copy(self, other: FlatBuffers) -> None:
        """Copy what `other` holds."""
        for mine, its in zip(self.parts, other.parts, strict=True):
            mine.copy_(its)

    def copy_where(self, flag: Tensor, other: FlatBuffers) -> None:
        """Copy what `other` holds where the device's `flag` is set, else keep every bit."""
        for mine, its in zip(self.parts, other.parts, strict=True):
            torch.where(flag, its, mine, out=mine)

    def subtract(self, other: FlatBuffers, *, of: FlatBuffers) -> None:
        """Hold `of` minus `other`."""
        for mine, whole, its in zip(self.parts, of.parts, other.parts, strict=True):
            torch.sub(whole, its, out=mine)

    def shrink_towards(self, center: FlatBuffers, scale: float | Tensor) -> None:
        """Turn a difference to `center` into the point at `scale` of the way out from it."""
        for mine, middle in zip(self.parts, center.parts, strict=True):
            mine.mul_(scale).add_(middle)

    def squared_norm(self) -> Tensor:
        """Return the squared L2 norm, in float64 on the device."""
        norms = torch.stack(torch._foreach_norm(self.views))
        return torch.sum(norms.double() ** 2)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
