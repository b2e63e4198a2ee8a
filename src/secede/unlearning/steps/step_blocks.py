"""Ascent steps that are queued on the device as one block; the host waits for none of them.

The device decides whether a step left the ball or passed the stop distance. Steps after the one
that passed it are computed and undone bit for bit, so a block ends where single steps would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from secede.federation.engine import Batch
from secede.unlearning.steps.flat_buffers import FlatBuffers


class StepBlock:
    """The buffers of a block of steps, allocated once per ascent."""

    def __init__(
        self, parameters: list[Tensor], momentum: FlatBuffers, move: Callable[[Batch], None]
    ) -> None:
        self._parameters, self._momentum, self._move = parameters, momentum, move
        self._momentum_before = FlatBuffers(parameters)
        self._current, self._proposed, self._difference = (
            FlatBuffers(parameters, wide=True) for _ in range(3)
        )
        self._is_narrow = any(
            p.dtype != view.dtype for p, view in zip(parameters, self._current.views, strict=True)
        )

    def launch(
        self,
        batches: Sequence[Batch],
        *,
        center: FlatBuffers,
        radius: float,
        own: FlatBuffers,
        stop_distance: float,
    ) -> Tensor:
        """Queue one step per batch; return two distances per step, still on the device.

        They are the distance to `center` before the projection and the distance to `own` after it.
        After the first step that ends beyond `stop_distance` from `own`, nothing changes any more.
        """
        device = self._parameters[0].device
        limit = torch.full((), radius, dtype=torch.float64, device=device)
        stopped = torch.zeros((), dtype=torch.bool, device=device)
        distances: list[Tensor] = []
        with torch.no_grad():
            self._current.load(self._parameters)
            for batch in batches:
                self._momentum_before.copy(self._momentum)
                with torch.enable_grad():
                    self._move(batch)
                to_center = self._project(center, limit)
                self._accept_or_undo(stopped)
                self._difference.set_difference(self._current, own)
                to_own = self._difference.squared_norm().sqrt()
                stopped = stopped | (to_own > stop_distance)
                distances += (to_center, to_own)
        return torch.stack(distances).view(-1, 2)

    def _project(self, center: FlatBuffers, radius: Tensor) -> Tensor:
        self._proposed.load(self._parameters)
        self._difference.set_difference(self._proposed, center)
        distance = self._difference.squared_norm().sqrt()
        self._difference.shrink_towards(center, radius / distance)
        self._proposed.copy_where(distance > radius, self._difference)
        return distance

    def _accept_or_undo(self, stopped: Tensor) -> None:
        """Accept the step, or undo it if an earlier step was the last."""
        self._current.copy_where(~stopped, self._proposed)
        self._momentum.copy_where(stopped, self._momentum_before)
        torch._foreach_copy_(self._parameters, self._current.views)
        if self._is_narrow:
            self._current.load(self._parameters)  # distances are those of the rounded values
