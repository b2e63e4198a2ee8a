"""Ascent by Adam, for methods that were published with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secede.federation.engine import Loss
from secede.state import State
from secede.unlearning.steps.ascent import Ascent

_EPSILON = 1e-7  # as in Keras, which the methods that use Adam were published with


class AdamAscent(Ascent):
    """Gradient ascent by Adam (decay 0.9 and 0.999) with clipping, one batch at a time."""

    def __init__(
        self, model: nn.Module, start: State, *, loss: Loss, learning_rate: float, clip: float
    ) -> None:
        super().__init__(
            model, start, loss=loss, learning_rate=learning_rate, momentum=0.0, clip=clip
        )
        self._adam = torch.optim.Adam(
            self.parameters, lr=learning_rate, eps=_EPSILON, maximize=True
        )

    def _advance(
        self, updated: list[Tensor], gradients: list[Tensor], momentum: list[Tensor]
    ) -> None:
        """Step along the parameters' gradients; those without one stay."""
        self._adam.step()
