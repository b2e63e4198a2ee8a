"""Steps that are queued on the device as one block, without the host waiting for any of them.

Whether a step left the ball or went beyond the threshold is decided on the device. Steps behind
the one that did are computed and undone bit by bit, so a block ends where single steps would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from secede.federation.engine import Batch
from secede.unlearning.steps.flat_buffers import FlatBuffers


class StepBlock:
    """The buffers that a block of steps needs, allocated once for a whole climb."""

    def __init__(
        self, parameters: list[Tensor], momentum: FlatBuffers, move: Callable[[Batch], None]
    ) -> None:
        self._parameters, self._momentum, self._move = parameters, momentum, move
        self._momentum_before = FlatBuffers(parameters)
        self._here, self._ahead, self._apart = (
            FlatBuffers(parameters, wide=True) for _ in range(3)
        )
        self._narrow = any(
            p.dtype != view.dtype for p, view in zip(parameters, self._here.views, strict=True)
        )

    def launch(
        self,
        batches: Sequence[Batch],
        *,
        center: FlatBuffers,
        radius: float,
        own: FlatBuffers,
        threshold: float,
    ) -> Tensor:
        """Queue one step per batch; return, still on the device, two distances for each.

        They are the distance to `center` before the projection, and to `own` after it. Behind the
        first step that ends beyond `threshold` of `own`, nothing changes any more.
        """
        device = self._parameters[0].device
        limit = torch.full((), radius, dtype=torch.float64, device=device)
        stopped = torch.zeros((), dtype=torch.bool, device=device)
        trail: list[Tensor] = []
        with torch.no_grad():
            self._here.take(self._parameters)
            for batch in batches:
                self._momentum_before.copy(self._momentum)
                with torch.enable_grad():
                    self._move(batch)
                away = self._project(center, limit)
                self._settle(stopped)
                self._apart.subtract(own, of=self._here)
                distance = self._apart.squared_norm().sqrt()
                stopped = stopped | (distance > threshold)
                trail += (away, distance)
        return torch.stack(trail).view(-1, 2)

    def _project(self, center: FlatBuffers, radius: Tensor) -> Tensor:
        self._ahead.take(self._parameters)
        self._apart.subtract(center, of=self._ahead)
        away = self._apart.squared_norm().sqrt()
        self._apart.shrink_towards(center, radius / away)
        self._ahead.copy_where(away > radius, self._apart)
        return away

    def _settle(self, stopped: Tensor) -> None:
        """Arrive at the step's end, or undo the step if an earlier one was the last."""
        self._here.copy_where(~stopped, self._ahead)
        self._momentum.copy_where(stopped, self._momentum_before)
        torch._foreach_copy_(self._parameters, self._here.views)
        if self._narrow:
            self._here.take(self._parameters)  # distances are those of the rounded values
