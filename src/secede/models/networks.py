"""The built-in networks: the paper's CNN (section 5), a smaller one, and a perceptron."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn

from secede.errors import ConfigError

Shape = tuple[int, ...]
_MINIMUM_SIDE = 4  # two halvings must leave at least one pixel


def _cnn(channels: tuple[int, int], units: int) -> Callable[[str, Shape, int], nn.Module]:
    first, second = channels

    def build(name: str, shape: Shape, classes: int) -> nn.Module:
        depth, height, width = _image_shape(name, shape)
        return nn.Sequential(
            nn.Conv2d(depth, first, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * (height // 4) * (width // 4), units),
            nn.ReLU(),
            nn.Linear(units, classes),
        )

    return build


def _mlp(name: str, shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, classes),
    )


def _image_shape(name: str, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < _MINIMUM_SIDE:
        raise ConfigError(
            f"model {name!r} needs images of shape (channels, height, width) with sides of at "
            f"least {_MINIMUM_SIDE} pixels, got inputs of shape {shape}; 'mlp' takes any shape"
        )
    return shape[0], shape[1], shape[2]


BUILDERS: Mapping[str, Callable[[str, Shape, int], nn.Module]] = MappingProxyType(
    {
        "paper-cnn": _cnn((32, 64), 512),
        "small-cnn": _cnn((16, 32), 128),
        "mlp": _mlp,
    }
)
