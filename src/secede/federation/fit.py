"""Says what is wrong with samples that a network cannot be run on, once it has failed.

Looking beforehand would draw batches, and change what is drawn after.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from secede.errors import DataError
from secede.federation.engine import Batch
from secede.federation.training import Loss
from secede.text import one_line

_KINDS = (RuntimeError, LookupError, TypeError, ValueError)


@contextmanager
def explained(model: nn.Module, loss: Loss, batches: list[Batch]) -> Iterator[None]:
    """Run the block; if it fails and one of `batches` is why, raise DataError instead."""
    try:
        yield
    except _KINDS as error:
        if not isinstance(error, torch.OutOfMemoryError):
            for batch in batches:
                _check(model, loss, batch, error)
        raise


def _check(model: nn.Module, loss: Loss, batch: Batch, error: Exception) -> None:
    x, y = batch
    tried = copy.deepcopy(model).eval()
    try:
        with torch.no_grad():
            outputs = tried(x.to(_device(tried)))
    except _KINDS as why:
        raise DataError(f"the network cannot take inputs of {_words(x)}: {_line(why)}") from error
    try:
        loss(outputs, y.to(_device(tried)))
    except _KINDS as why:
        raise DataError(
            f"the loss cannot take labels of {_words(y)} for outputs of {_words(outputs)}, "
            f"expected classes as whole numbers: {_line(why)}"
        ) from error


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _words(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"type {type(value).__name__}"
    return f"shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"


def _line(error: Exception) -> str:
    return one_line(error)[:160] or type(error).__name__
