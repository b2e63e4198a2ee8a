"""A state on the wire: safetensors bytes, written plainly and read without trust.

Nothing is unpickled. What comes in is measured before it is parsed, its header is held against
the state that is expected, byte for byte accounted for, and only then decoded. So the memory it
can take is bounded by `limit_bytes`, whatever it says of itself. Errors do not repeat its words:
they go into the journal, where no free text of a client belongs.
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
_LENGTH_BYTES = 8  # of the header's length, little-endian, at the beginning
_ENTRY_BYTES = 256  # of a header for each entry beside its name: dtype, shape, two offsets
_SLACK = 1.02  # over what the values themselves take


def pack(state: State) -> bytes:
    """Return `state` as safetensors bytes, without metadata."""
    for name, value in state.items():
        _dtype(name, value)
    # Copies, because safetensors refuses entries that share memory.
    own = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    return safetensors.torch.save(own)


def limit_bytes(like: State) -> int:
    """Return how many bytes a message with a state such as `like` may have at most."""
    return _LENGTH_BYTES + _header_limit(like) + math.ceil(_SLACK * states.size_bytes(like))


def unpack(data: bytes, like: State, *, limit: int | None = None) -> dict[str, Tensor]:
    """Return the state in `data`, on the CPU; it must be one such as `like`, with finite values.

    `limit` is in bytes and by default `limit_bytes(like)`: longer messages are not looked at.
    """
    limit = limit_bytes(like) if limit is None else limit
    if len(data) > limit:
        raise GuardError(f"the message has {len(data):,} bytes, expected {limit:,} at most")
    header, values = _split(data, _header_limit(like))
    _check_header(header, like, values)
    try:
        state = safetensors.torch.load(data)
    except (ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise GuardError("the message is not a safetensors file") from error
    try:
        states.check_schema(state, like)
        states.check_finite(state, "the message")
    except StateError as error:
        raise GuardError(str(error)) from error
    return {name: state[name] for name in like}


def _split(data: bytes, limit: int) -> tuple[dict[str, Any], int]:
    """Return the header and how many bytes of values follow it."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    rest = len(data) - _LENGTH_BYTES - length
    if len(data) < _LENGTH_BYTES or rest < 0:
        raise GuardError(f"the message ends after {len(data):,} bytes, within its header")
    if length > limit:
        raise GuardError(f"the message's header has {length:,} bytes, expected {limit:,} at most")
    text = data[_LENGTH_BYTES : _LENGTH_BYTES + length].rstrip(b" ")
    try:
        return canonical_json.parse(text, limit), rest
    except SecedeError as error:
        raise GuardError(f"the message's header is not one of safetensors: {error}") from error


def _check_header(header: dict[str, Any], like: State, values: int) -> None:
    """Raise unless `header` describes just the entries of `like`, in `values` bytes end to end."""
    if "__metadata__" in header:
        raise GuardError("the message carries metadata, expected a state and nothing else")
    missing, extra = sorted(like.keys() - header.keys()), sorted(header.keys() - like.keys())
    if missing or extra:
        raise GuardError(f"names differ: missing {_list(missing)}, {len(extra):,} unexpected")
    places = [_place(name, header[name], value, values) for name, value in like.items()]
    ends = [(0, 0), *sorted(places), (values, values)]
    for (_, end), (begin, _) in pairwise(ends):
        if begin != end:
            raise GuardError(
                f"the message's values {'overlap' if begin < end else 'have a gap'} at byte "
                f"{min(begin, end):,} of {values:,}, expected them end to end"
            )


def _place(name: str, entry: object, expected: Tensor, values: int) -> tuple[int, int]:
    """Return where an entry's values begin and end; dtype, shape, length must be as expected."""
    wanted = {"dtype": _dtype(name, expected), "shape": list(expected.shape)}
    if not isinstance(entry, dict) or entry.keys() != {*wanted, "data_offsets"}:
        raise GuardError(f"{name!r} is not described by dtype, shape and data_offsets alone")
    for key, value in wanted.items():
        if entry[key] != value or not _exact(entry[key]):
            raise GuardError(f"{name!r} has another {key} than {value}, which is expected")
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
    """Tell whether a list holds whole numbers only: to Python, true and 1.0 equal 1 as well."""
    return not isinstance(value, list) or all(type(item) is int for item in value)


def _header_limit(like: State) -> int:
    # JSON may write a character of a name as two escapes of six bytes.
    return _ENTRY_BYTES + sum(
        _ENTRY_BYTES + 12 * len(name) + 24 * v.ndim for name, v in like.items()
    )


def _dtype(name: str, value: Tensor) -> str:
    if value.dtype not in _DTYPES:
        raise StateError(
            f"{name!r} is {value.dtype}, which does not travel; expected one of "
            f"{', '.join(str(dtype) for dtype in _DTYPES)}"
        )
    return _DTYPES[value.dtype]


def _list(names: list[str]) -> str:
    return list_first([repr(name[:80]) for name in names], 3)
