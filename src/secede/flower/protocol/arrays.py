"""States as Flower's records and back. The size of a received record is checked before decoding.

There are two forms. In rounds of training, which the user's own functions handle, a state is an
ordinary ArrayRecord. In secede's own tasks it is safetensors bytes in one Array: Flower sends it in
chunks, and no mod that changes parameters (clipping, noise) takes it for a model.
"""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from torch import Tensor, nn

from secede import state as states
from secede.erasure import pack_state, unpack_state
from secede.errors import GuardError, StateError
from secede.state import State
from secede.text import list_first, one_line

NUMPY, SAFETENSORS = "numpy.ndarray", "safetensors"
_HEADER = 10_240  # bytes that numpy's header before the values may take at most
_ENTRY = "state"
_FIRST = np.lib.format.magic(1, 0)


def template_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a template of the states that a user's records hold: names, shapes and dtypes.

    It has all of `state_dict`, shared entries under each of their names. Values do not matter.
    """
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def to_tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """Return a record's arrays as tensors to read only; other than NumPy numbers are refused."""
    return {name: _tensor(name, array, shared=True) for name, array in record.items()}


def to_state(
    record: ArrayRecord, template: State, *, averaged: bool = False, shared: bool = False
) -> dict[str, Tensor]:
    """Return the state in `record`, whose entries must be those of `template`, of any value.

    A mean turns BatchNorm's counters into floats. `averaged` turns them back, as loading them into
    a model does. With `shared` the values lie in the record's own bytes: do not write to them.
    """
    missing, extra = (
        sorted(template.keys() - record.keys()),
        sorted(record.keys() - template.keys()),
    )
    if missing or extra:
        raise GuardError(f"names differ: missing {_list(missing)}, unexpected {_list(extra)}")
    state = dict[str, Tensor]()
    for name, expected in template.items():
        array = record[name]
        restored = averaged and not expected.is_floating_point()
        item_bytes = 8 if restored else expected.element_size()
        if len(array.data) > _HEADER + item_bytes * expected.numel():
            raise GuardError(f"{name!r} takes {len(array.data):,} bytes, which is too many")
        value = _tensor(name, array, shared=shared)
        state[name] = value.to(expected.dtype) if restored else value
    try:
        states.check_schema(state, template)
    except StateError as error:
        raise GuardError(str(error)) from error
    return state


def pack(state: State) -> ArrayRecord:
    """Return a state as safetensors bytes in one Array."""
    data = pack_state(state)
    return ArrayRecord({_ENTRY: Array("uint8", (len(data),), SAFETENSORS, data)})


def unpack(record: ArrayRecord, template: State) -> dict[str, Tensor]:
    """Return the state that `pack` sent. GuardError unless it is one, with finite values."""
    array = record.get(_ENTRY)
    if len(record) != 1 or array is None or array.stype != SAFETENSORS:
        raise GuardError("the message has no state in safetensors form: did a mod change it?")
    return unpack_state(array.data, template)


def size_bytes(message: Message) -> int:
    """Return the size of a message's records: serialised arrays, keys and scalars."""
    return sum(len(key) + _size(record) for key, record in message.content.items())


def _size(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    if isinstance(record, ArrayRecord):
        return sum(len(name) + len(array.data) for name, array in record.items())
    return sum(len(name) + _scalar(value) for name, value in record.items())


def _scalar(value: object) -> int:
    if isinstance(value, list):
        return sum(_scalar(item) for item in value)
    if isinstance(value, bytes):
        return len(value)
    return len(value.encode()) if isinstance(value, str) else 8


def _tensor(name: str, array: Array, *, shared: bool = False) -> Tensor:
    if array.stype != NUMPY:
        raise GuardError(f"{name[:80]!r} is serialised as {array.stype[:40]!r}, expected {NUMPY!r}")
    try:
        if shared and (view := _view(array.data)) is not None:
            return view
        value = np.asarray(array.numpy())  # never unpickles
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    except (ValueError, TypeError, EOFError, OSError, SyntaxError, MemoryError) as error:
        line = one_line(error)[:160]
        raise GuardError(f"{name[:80]!r} is no array of numbers ({line})") from error


def _view(data: bytes) -> Tensor | None:
    """Return the values without copying them; None where they must be read another way."""
    if data[: len(_FIRST)] != _FIRST:
        return None
    begin = len(_FIRST) + 2 + int.from_bytes(data[len(_FIRST) : len(_FIRST) + 2], "little")
    shape, column_order, dtype = _header(data[: min(begin, _HEADER)])
    if column_order or dtype.hasobject or not math.prod(shape):
        return None
    values = np.frombuffer(data, dtype, math.prod(shape), begin).reshape(shape)
    try:
        return torch.utils.dlpack.from_dlpack(values)
    except (BufferError, RuntimeError):  # an older NumPy exports no read-only array
        return None


@lru_cache(maxsize=1024)
def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return an array's shape, order and dtype. Cached, since all clients send the same headers."""
    stream = io.BytesIO(data)
    np.lib.format.read_magic(stream)
    return np.lib.format.read_array_header_1_0(stream)


def _list(names: list[str]) -> str:
    return list_first([repr(name[:80]) for name in names], 3)
