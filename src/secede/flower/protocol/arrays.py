"""States as Flower's records and back: what comes in is measured before it is decoded.

Two forms. In rounds, which the user's own functions train, a state is an ordinary ArrayRecord. In
our own tasks it is safetensors bytes in one Array, which Flower sends in chunks and no mod that
changes parameters (clipping, noise) can take for a model.
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
from secede.erasure.defences import state_message as messages
from secede.errors import GuardError, StateError
from secede.state import State
from secede.text import list_first, one_line

NUMPY, SAFETENSORS = "numpy.ndarray", "safetensors"
_HEADER = 10_240  # bytes that numpy's header before the values may take at most
_ENTRY = "state"
_FIRST = np.lib.format.magic(1, 0)


def template_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the entries that a user's records hold: all of `state_dict`, shared ones by each name.

    States of other networks are told by names, shapes and dtypes, so the values do not matter.
    """
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def to_record(state: State) -> ArrayRecord:
    """Return a state as an ordinary record, as the user's own functions take it."""
    return ArrayRecord({name: value.detach().cpu() for name, value in state.items()})


def to_tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """Return a record's arrays as they are, to be read only; they must be NumPy's and numbers."""
    return {name: _tensor(name, array, shared=True) for name, array in record.items()}


def to_state(
    record: ArrayRecord, like: State, *, averaged: bool = False, shared: bool = False
) -> dict[str, Tensor]:
    """Return the state in `record`, which must be one such as `like`; values may be anything.

    A mean turns BatchNorm's counters into floats: `averaged` takes them back, as loading them into
    a model does. With `shared` the values lie in the record's own bytes, and must not be written.
    """
    missing, extra = sorted(like.keys() - record.keys()), sorted(record.keys() - like.keys())
    if missing or extra:
        raise GuardError(f"names differ: missing {_list(missing)}, unexpected {_list(extra)}")
    found = dict[str, Tensor]()
    for name, expected in like.items():
        array = record[name]
        whole = averaged and not expected.is_floating_point()
        width = 8 if whole else expected.element_size()
        if len(array.data) > _HEADER + width * expected.numel():
            raise GuardError(f"{name!r} takes {len(array.data):,} bytes, which is too many")
        value = _tensor(name, array, shared=shared)
        found[name] = value.to(expected.dtype) if whole else value
    try:
        states.check_schema(found, like)
    except StateError as error:
        raise GuardError(str(error)) from error
    return found


def pack(state: State) -> ArrayRecord:
    """Return a state as safetensors bytes in one Array."""
    data = messages.pack(state)
    return ArrayRecord({_ENTRY: Array("uint8", (len(data),), SAFETENSORS, data)})


def unpack(record: ArrayRecord, like: State) -> dict[str, Tensor]:
    """Return the state that `pack` sent, checked byte for byte; GuardError if it is anything else.

    A state with values that are not finite is refused, too.
    """
    array = record.get(_ENTRY)
    if len(record) != 1 or array is None or array.stype != SAFETENSORS:
        raise GuardError("the message holds no state in safetensors form: did a mod change it?")
    return messages.unpack(array.data, like)


def size_bytes(message: Message) -> int:
    """Return the bytes of a message's records: arrays as they are serialised, keys and scalars."""
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
        if shared and (found := _view(array.data)) is not None:
            return found
        value = np.asarray(array.numpy())  # never unpickles
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    except (ValueError, TypeError, EOFError, OSError, SyntaxError, MemoryError) as error:
        line = one_line(error)[:160]
        raise GuardError(f"{name[:80]!r} is no array of numbers ({line})") from error


def _view(data: bytes) -> Tensor | None:
    """Return the values where they lie; None where they must be read otherwise."""
    if data[: len(_FIRST)] != _FIRST:
        return None
    begin = len(_FIRST) + 2 + int.from_bytes(data[len(_FIRST) : len(_FIRST) + 2], "little")
    shape, by_columns, kind = _header(data[: min(begin, _HEADER)])
    if by_columns or kind.hasobject or not math.prod(shape):
        return None
    values = np.frombuffer(data, kind, math.prod(shape), begin).reshape(shape)
    try:
        return torch.utils.dlpack.from_dlpack(values)
    except (BufferError, RuntimeError):  # an older NumPy gives nothing that is read only
        return None


@lru_cache(maxsize=1024)
def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and kind of an array; all clients send the same headers."""
    stream = io.BytesIO(data)
    np.lib.format.read_magic(stream)
    return np.lib.format.read_array_header_1_0(stream)


def _list(names: list[str]) -> str:
    return list_first([repr(name[:80]) for name in names], 3)
