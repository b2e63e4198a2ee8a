"""Samples from what Python users have: tensors, arrays, or any map-style dataset."""

from __future__ import annotations

import operator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from secede.data.samples import Samples
from secede.data.tensors import to_inputs, to_labels, to_tensor
from secede.errors import DataError

_ARRAYS = (Tensor, np.ndarray)


class MapStyle(Protocol):
    """Anything with a length whose items, counted from 0, are pairs of input and label."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return one sample as a pair of input and label."""
        ...


def as_samples(
    source: object, *, floats: torch.dtype = torch.float32, tokens: bool = False
) -> Samples:
    """Return `source` as samples: Samples, a tuple (x, y) of tensors or arrays, or map-style.

    Floats become `floats`; with `tokens` inputs may be whole numbers.
    """
    if isinstance(source, Samples):
        return source
    # A list of two pairs is map-style; only a tuple of two arrays is inputs and labels.
    if isinstance(source, tuple) and [isinstance(part, _ARRAYS) for part in source] == [True, True]:
        return from_tensors(*source, floats=floats, tokens=tokens)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return from_dataset(source, floats=floats, tokens=tokens)
    raise DataError(
        f"found {type(source).__name__}, expected Samples, a tuple (x, y) of tensors or arrays, "
        "or a map-style dataset with a length and items (input, label)"
    )


def from_tensors(
    x: object, y: object, *, floats: torch.dtype = torch.float32, tokens: bool = False
) -> Samples:
    """Return samples of tensors or arrays: bytes are scaled to [0, 1], floats kept."""
    return Samples(to_inputs(x, "inputs", floats=floats, tokens=tokens), to_labels(y, "labels"))


def from_dataset(
    source: MapStyle, *, floats: torch.dtype = torch.float32, tokens: bool = False
) -> Samples:
    """Return all items of a map-style dataset as samples."""
    if len(source) == 0:
        raise DataError("the dataset is empty")
    inputs, labels = zip(*(_item(source, index) for index in range(len(source))), strict=True)
    for index, x in enumerate(inputs):
        if x.shape != inputs[0].shape or x.dtype != inputs[0].dtype:
            raise DataError(
                f"item {index}: input of {tuple(x.shape)} {x.dtype}, but item 0 has "
                f"{tuple(inputs[0].shape)} {inputs[0].dtype}; all must be alike"
            )
    return from_tensors(torch.stack(inputs), torch.tensor(labels), floats=floats, tokens=tokens)


def _item(source: MapStyle, index: int) -> tuple[Tensor, int]:
    item = source[index]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(
            f"item {index}: found {type(item).__name__}, expected a pair of input and label"
        )
    x, label = item
    try:
        return to_tensor(x, f"item {index}: input"), operator.index(label)
    except TypeError as error:
        raise DataError(f"item {index}: label {label!r:.40}, expected a whole number") from error
