"""Networks by name: the paper's CNN, two smaller ones, and a user's own by `module:factory`.

It imports torch only to build a network, so that names can be listed without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from secede.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from torch import nn

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "paper-cnn": "the paper's CNN: 5x5 convolutions of 32 and 64 channels, 512 units",
        "small-cnn": "a lighter CNN: 5x5 convolutions of 16 and 32 channels, 128 units",
        "mlp": "two hidden layers of 200 units, for inputs of any shape",
    }
)


def check_name(name: str) -> None:
    """Raise unless `name` is a built-in network or looks like `package.module:factory`."""
    if name in NAMES or ":" in name:
        return
    raise ConfigError(
        f"model: unknown name {name!r}; {did_you_mean(name, NAMES)}"
        f"expected one of {', '.join(NAMES)}, or your own as package.module:factory"
    )


def build(
    name: str, *, shape: tuple[int, ...], classes: int, search: Path | None = None
) -> nn.Module:
    """Return a new network for inputs of `shape`; a user's module may also lie in `search`.

    Parameters come from torch's global generator: seed it for a repeatable start.
    """
    check_name(name)
    _check_sizes(name, shape, classes)
    if ":" in name:
        from secede.models.custom import build_custom

        return build_custom(name, shape=shape, classes=classes, search=search)
    from secede.models.networks import BUILDERS

    return BUILDERS[name](name, shape, classes)


def _check_sizes(name: str, shape: tuple[int, ...], classes: int) -> None:
    if not shape or min(shape) < 1 or classes < 1:
        raise ConfigError(
            f"model {name!r} needs inputs of at least one dimension and at least one class, "
            f"got shape {shape} and {classes} classes"
        )
