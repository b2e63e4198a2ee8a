"""Explain a failed forward pass: name the inputs or labels that do not fit the model.

This runs after the failure: a check beforehand would draw batches and change later draws.
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

_MISMATCHES = (RuntimeError, LookupError, TypeError, ValueError)


@contextmanager
def explain_mismatch(model: nn.Module, loss: Loss, batches: list[Batch]) -> Iterator[None]:
    """Run the block; raise DataError if it fails because of one of `batches`."""
    try:
        yield
    except _MISMATCHES as error:
        if not isinstance(error, torch.OutOfMemoryError):
            for batch in batches:
                _check(model, loss, batch, error)
        raise


def _check(model: nn.Module, loss: Loss, batch: Batch, error: Exception) -> None:
    x, y = batch
    copied = copy.deepcopy(model).eval()
    try:
        with torch.no_grad():
            outputs = copied(x.to(_device(copied)))
    except _MISMATCHES as mismatch:
        raise DataError(
            f"the model cannot take inputs of {_describe(x)}: {_one_line(mismatch)}"
        ) from error
    try:
        loss(outputs, y.to(_device(copied)))
    except _MISMATCHES as mismatch:
        raise DataError(
            f"the loss cannot take labels of {_describe(y)} for outputs of {_describe(outputs)}, "
            f"expected classes as whole numbers: {_one_line(mismatch)}"
        ) from error


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _describe(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"type {type(value).__name__}"
    return f"shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"


def _one_line(error: Exception) -> str:
    return one_line(error)[:160] or type(error).__name__
