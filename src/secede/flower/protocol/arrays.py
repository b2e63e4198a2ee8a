"""States as Flower's records and back. The size of a received record is checked before decoding.

There are two forms. In rounds of training, which the user's own functions handle, a state is an
ordinary ArrayRecord. In secede's own tasks it is safetensors bytes in one Array: Flower sends it in
chunks, and no mod that changes parameters (clipping, noise) takes it for a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal

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
    return {name: _tensor(name, array, None, shared=True) for name, array in record.items()}


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
        value = _tensor(name, array, expected, shared=shared)
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


def _tensor(name: str, array: Array, expected: Tensor | None, *, shared: bool) -> Tensor:
    """Return an array's values, of the expected shape and kind; None: of those that it claims."""
    if array.stype != NUMPY:
        raise GuardError(f"{name[:80]!r} is serialised as {array.stype[:40]!r}, expected {NUMPY!r}")
    try:
        if expected is None and not array.dtype:  # records of the legacy stack claim none
            return torch.from_numpy(np.array(array.numpy()))
        if expected is None:
            kind = getattr(torch, array.dtype)
            expected = torch.empty(tuple(array.shape), dtype=kind, device="meta")
        return _values(array.data, expected, shared=shared)
    except GuardError as error:
        raise GuardError(f"{name[:80]!r} {error}") from None
    except Exception as error:  # whatever NumPy raises at bytes that a stranger made up
        line = one_line(error)[:160]
        raise GuardError(f"{name[:80]!r} is no array of numbers ({line})") from error


def _values(data: bytes, expected: Tensor, *, shared: bool) -> Tensor:
    """Return the values of bytes that numpy.save wrote; their header is compared, never parsed."""
    shape, count = tuple(expected.shape), expected.numel()
    begin = len(_FIRST) + 2 + int.from_bytes(data[len(_FIRST) : len(_FIRST) + 2], "little")
    header = data[len(_FIRST) + 2 : min(begin, _HEADER)].rstrip(b" \n")
    known = _headers(shape, expected.dtype)
    if not data.startswith(_FIRST) or header not in known:
        raise GuardError(
            f"is no array of {expected.dtype} and shape {shape}, as numpy.save writes it: it "
            f"begins with {header[:120].decode('latin-1')!a}"
        )
    dtype, order = known[header]
    if len(data) - begin != dtype.itemsize * count:
        wanted = begin + dtype.itemsize * count
        raise GuardError(f"is no array of its shape: {len(data):,} bytes, expected {wanted:,}")
    values = np.frombuffer(data, dtype, count, begin).reshape(shape, order=order)
    if shared and count:
        with suppress(BufferError, RuntimeError):  # an older NumPy exports no read-only array
            return torch.utils.dlpack.from_dlpack(values)
    return torch.from_numpy(values.copy())


@lru_cache(maxsize=4096)
def _headers(
    shape: tuple[int, ...], dtype: torch.dtype
) -> Mapping[bytes, tuple[np.dtype[Any], Literal["C", "F"]]]:
    """Return the kinds and orders that numpy.save may write for an array, by its header's text.

    A mean turns whole numbers, as BatchNorm counts them, into floats.
    """
    own = torch.empty(0, dtype=dtype).numpy().dtype
    kinds = {own} if own.kind == "f" else {own, np.dtype(np.float64), np.dtype(np.float32)}
    text = "{{'descr': {!r}, 'fortran_order': {}, 'shape': {}, }}"
    orders: tuple[Literal["C", "F"], ...] = ("C", "F")
    return {
        text.format(kind.str, order == "F", shape).encode(): (kind, order)
        for kind in kinds
        for order in orders
    }


def _list(names: list[str]) -> str:
    return list_first([repr(name[:80]) for name in names], 3)
