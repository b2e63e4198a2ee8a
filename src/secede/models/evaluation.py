"""Switch a model to evaluation mode within a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the block with `model` in evaluation mode, then restore the mode of each module."""
    # Modules may differ: a user may have frozen some on purpose.
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
