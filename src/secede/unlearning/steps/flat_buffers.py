"""Flat buffers as large as a model: one operation reaches every parameter of a dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class FlatBuffers:
    """One tensor per parameter; tensors of one dtype share one flat tensor.

    `parts` are the flat tensors, one per dtype. `views` show the same numbers in the parameters'
    order and shapes. Buffers over the same parameters with the same `wide` have matching parts.
    With `wide`, float16 and bfloat16 are held in float32, the dtype that distances are measured in.
    """

    def __init__(
        self, parameters: Sequence[Tensor], *, wide: bool = False, value: float = 0.0
    ) -> None:
        indices_by_dtype: dict[torch.dtype, list[int]] = {}
        for index, parameter in enumerate(parameters):
            dtype = _wide_dtype(parameter.dtype) if wide else parameter.dtype
            indices_by_dtype.setdefault(dtype, []).append(index)
        self.parts: list[Tensor] = []
        views: dict[int, Tensor] = {}
        for dtype, indices in indices_by_dtype.items():
            sizes = [parameters[index].numel() for index in indices]
            part = torch.full((sum(sizes),), value, dtype=dtype, device=parameters[0].device)
            self.parts.append(part)
            for index, flat_view in zip(indices, part.split(sizes), strict=True):
                views[index] = flat_view.view(parameters[index].shape)
        self.views = [views[index] for index in range(len(parameters))]

    def load(self, values: list[Tensor]) -> None:
        """Copy `values`, one per parameter."""
        torch._foreach_copy_(self.views, values)

    def copy(self, other: FlatBuffers) -> None:
        """Copy the values of `other`."""
        for part, other_part in zip(self.parts, other.parts, strict=True):
            part.copy_(other_part)

    def copy_where(self, flag: Tensor, other: FlatBuffers) -> None:
        """Copy the values of `other` if the device's `flag` is set; else keep every bit."""
        for part, other_part in zip(self.parts, other.parts, strict=True):
            torch.where(flag, other_part, part, out=part)

    def set_difference(self, minuend: FlatBuffers, subtrahend: FlatBuffers) -> None:
        """Set the values to `minuend` minus `subtrahend`."""
        for part, left, right in zip(self.parts, minuend.parts, subtrahend.parts, strict=True):
            torch.sub(left, right, out=part)

    def shrink_towards(self, center: FlatBuffers, scale: float | Tensor) -> None:
        """Replace a difference d to `center` by the point center + scale * d."""
        for part, center_part in zip(self.parts, center.parts, strict=True):
            part.mul_(scale).add_(center_part)

    def squared_norm(self) -> Tensor:
        """Return the squared L2 norm, in float64 on the device."""
        norms = torch.stack(torch._foreach_norm(self.views))
        return torch.sum(norms.double() ** 2)


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
