"""Turn a user's arrays and tensors into valid inputs and labels, or say what is wrong with them.

`source` names the values in errors, for instance "toy.npz: x_train".
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from secede.errors import DataError

_INTEGERS = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)


def to_tensor(values: object, source: str) -> Tensor:
    """Return an array or a tensor of numbers as a tensor."""
    if isinstance(values, Tensor):
        return values.detach()
    if not isinstance(values, np.ndarray):
        raise DataError(f"{source}: found {type(values).__name__}, expected a tensor or an array")
    try:
        native = values.dtype.newbyteorder("=")
        return torch.from_numpy(np.require(values, native, requirements=["C", "W"]))
    except TypeError as error:
        raise DataError(
            f"{source}: found values of type {values.dtype}, expected numbers"
        ) from error


def to_inputs(
    values: object, source: str, *, floats: torch.dtype = torch.float32, tokens: bool = False
) -> Tensor:
    """Return inputs as `floats`: bytes scaled to [0, 1], floats as they are, finite.

    With `tokens` other whole numbers, which an embedding looks up, stay what they are.
    """
    x = to_tensor(values, source)
    if x.ndim < 2:
        raise DataError(f"{source}: shape {tuple(x.shape)}, expected one row or image per sample")
    if len(x) == 0:
        raise DataError(f"{source}: is empty")
    if x.dtype == torch.uint8:
        return x.to(floats).div_(255)
    if tokens and x.dtype in (torch.int32, torch.int64):
        return x
    if not x.dtype.is_floating_point:
        raise DataError(f"{source}: found {x.dtype}, expected uint8 (0 to 255) or floats")
    x = x.to(floats)
    if not bool(torch.isfinite(x).all()):
        raise DataError(f"{source}: holds NaN, infinite or too large values")
    return x


def to_labels(values: object, source: str) -> Tensor:
    """Return labels as int64, whole numbers from 0."""
    y = to_tensor(values, source)
    if y.ndim != 1:
        raise DataError(f"{source}: shape {tuple(y.shape)}, expected one label per sample, (n,)")
    if len(y) == 0:
        raise DataError(f"{source}: is empty")
    if y.dtype not in _INTEGERS:
        raise DataError(f"{source}: found {y.dtype}, expected whole numbers from 0 to classes - 1")
    y = y.to(torch.int64)
    if int(y.min()) < 0:
        raise DataError(f"{source}: found label {int(y.min())}, expected whole numbers from 0")
    return y
