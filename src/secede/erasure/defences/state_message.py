"""A state on the wire: safetensors bytes, validated before they are decoded.

Nothing is unpickled. A message's size is checked before it is parsed, then its header against the
template state, every byte accounted for. So the memory it can take is bounded by `limit_bytes`,
whatever it says of itself. Errors do not repeat its words: they go into the journal, where no free
text of a client belongs.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from secede import state as states
from secede.erasure import canonical_json
from secede.errors import GuardError, SecedeError, StateError
from secede.state import State
from secede.text import list_first

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_LENGTH_BYTES = 8  # for the header's length, little-endian, at the beginning
_ENTRY_BYTES = 256  # in a header for each entry beside its name: dtype, shape, two offsets
_SLACK = 1.02  # times what the values themselves take


def pack_state(state: State) -> bytes:
    """Return `state` as safetensors bytes, without metadata."""
    for name, value in state.items():
        _dtype(name, value)
    # Copies, because safetensors refuses entries that share memory.
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    return safetensors.torch.save(copies)


def limit_bytes(template: State) -> int:
    """Return how many bytes a message with a state like the template may have at most."""
    values = math.ceil(_SLACK * states.size_bytes(template))
    return _LENGTH_BYTES + _header_limit(template) + values


def unpack_state(data: bytes, template: State, *, limit: int | None = None) -> dict[str, Tensor]:
    """Return the state in `data`, on the CPU; raise unless it fits the template and is finite.

    `limit` is in bytes and by default `limit_bytes(template)`: longer messages are not parsed.
    """
    limit = limit_bytes(template) if limit is None else limit
    if len(data) > limit:
        raise GuardError(f"the message has {len(data):,} bytes, expected at most {limit:,}")
    header, values = _split(data, _header_limit(template))
    _check_header(header, template, values)
    try:
        state = safetensors.torch.load(data)
    except (ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise GuardError("the message is not a safetensors file") from error
    try:
        states.check_schema(state, template)
        states.check_finite(state, "the message")
    except StateError as error:
        raise GuardError(str(error)) from error
    return {name: state[name] for name in template}


def _split(data: bytes, limit: int) -> tuple[dict[str, Any], int]:
    """Return the header and how many bytes of values follow it."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    rest = len(data) - _LENGTH_BYTES - length
    if len(data) < _LENGTH_BYTES or rest < 0:
        raise GuardError(f"the message ends after {len(data):,} bytes, within its header")
    if length > limit:
        raise GuardError(f"the message's header has {length:,} bytes, expected at most {limit:,}")
    text = data[_LENGTH_BYTES : _LENGTH_BYTES + length].rstrip(b" ")
    try:
        return canonical_json.parse_json(text, limit), rest
    except SecedeError as error:
        raise GuardError(f"the message has no safetensors header: {error}") from error


def _check_header(header: dict[str, Any], template: State, values: int) -> None:
    """Raise unless `header` has the template's entries alone, end to end in `values` bytes."""
    if "__metadata__" in header:
        raise GuardError("the message carries metadata, expected a state and nothing else")
    missing, extra = sorted(template.keys() - header.keys()), header.keys() - template.keys()
    if missing or extra:
        names = list_first([repr(name[:80]) for name in missing], 3)
        raise GuardError(f"names differ: missing {names}, {len(extra):,} unexpected")
    places = [_place(name, header[name], value, values) for name, value in template.items()]
    ends = [(0, 0), *sorted(places), (values, values)]
    for (_, end), (begin, _) in pairwise(ends):
        if begin != end:
            raise GuardError(
                f"the message's values {'overlap' if begin < end else 'have a gap'} at byte "
                f"{min(begin, end):,} of {values:,}, expected them end to end"
            )


def _place(name: str, entry: object, expected: Tensor, values: int) -> tuple[int, int]:
    """Return where an entry's values begin and end; raise unless dtype, shape and length fit."""
    described = {"dtype": _dtype(name, expected), "shape": list(expected.shape)}
    if not isinstance(entry, dict) or entry.keys() != {*described, "data_offsets"}:
        raise GuardError(f"{name!r} is not described by dtype, shape and data_offsets alone")
    for key, value in described.items():
        if entry[key] != value or not _exact(entry[key]):
            raise GuardError(f"{name!r} has another {key} than the expected {value}")
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not _exact(offsets):
        raise GuardError(f"{name!r} has data_offsets that are not two whole numbers")
    begin, end = offsets
    size = expected.numel() * expected.element_size()
    if not 0 <= begin <= end <= values:
        raise GuardError(f"{name!r} has data_offsets outside of the {values:,} bytes of values")
    if end - begin != size:
        raise GuardError(f"{name!r} has {end - begin:,} bytes of values, expected {size:,}")
    return begin, end


def _exact(value: object) -> bool:
    """Return whether a list holds whole numbers only: to Python, true and 1.0 equal 1 as well."""
    return not isinstance(value, list) or all(type(item) is int for item in value)


def _header_limit(template: State) -> int:
    # JSON may write a character of a name as two escapes of six bytes.
    return _ENTRY_BYTES + sum(
        _ENTRY_BYTES + 12 * len(name) + 24 * v.ndim for name, v in template.items()
    )


def _dtype(name: str, value: Tensor) -> str:
    if value.dtype not in _DTYPES:
        raise StateError(
            f"{name!r} is {value.dtype}, which cannot be sent; expected one of "
            f"{', '.join(str(dtype) for dtype in _DTYPES)}"
        )
    return _DTYPES[value.dtype]
