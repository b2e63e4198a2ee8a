"""The same network in another form that computes the same numbers faster."""

from __future__ import annotations

import torch
from torch import nn


def channels_last(model: nn.Module) -> None:
    """Put images' channels last in memory: another order, not another arithmetic."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def pool_before_relu(model: nn.Module) -> None:
    """Swap each ReLU with the max-pooling right behind it.

    Both let the larger of two values win, so that their order changes no number and no gradient,
    but the ReLU then has a fraction of the values to do. Parameters keep their names.
    """
    for module in model.modules():
        if type(module) is nn.Sequential:
            for place in range(len(module) - 1):
                if _swappable(module[place], module[place + 1]):
                    module[place], module[place + 1] = module[place + 1], module[place]


def _swappable(first: nn.Module, second: nn.Module) -> bool:
    plain = type(first) is nn.ReLU and type(second) is nn.MaxPool2d and not second.return_indices
    return plain and not any(hooks for module in (first, second) for hooks in _hooks(module))


def _hooks(module: nn.Module) -> tuple[object, ...]:
    return (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
