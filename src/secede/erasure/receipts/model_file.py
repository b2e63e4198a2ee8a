"""The digest of a model in a safetensors file, read without torch.

It is what `secede.state.digest` gives for the loaded state: over names, dtypes, shapes and values.
Files that the format does not allow (gaps, overlaps, wrong lengths) are refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import Field, TypeAdapter, ValidationError

from secede import files
from secede.erasure.types import Count, Document
from secede.errors import StateError
from secede.strict import parse_json

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_PIECE = 1 << 20  # bytes read at once
# Of a value: torch's name and bytes.
_DTYPES = {
    "F64": ("torch.float64", 8),
    "F32": ("torch.float32", 4),
    "F16": ("torch.float16", 2),
    "BF16": ("torch.bfloat16", 2),
    "F8_E4M3": ("torch.float8_e4m3fn", 1),
    "F8_E5M2": ("torch.float8_e5m2", 1),
    "C64": ("torch.complex64", 8),
    "I64": ("torch.int64", 8),
    "I32": ("torch.int32", 4),
    "I16": ("torch.int16", 2),
    "I8": ("torch.int8", 1),
    "U64": ("torch.uint64", 8),
    "U32": ("torch.uint32", 4),
    "U16": ("torch.uint16", 2),
    "U8": ("torch.uint8", 1),
    "BOOL": ("torch.bool", 1),
}


class _Entry(Document):
    """What the header says of one tensor."""

    dtype: str
    shape: Annotated[tuple[Count, ...], Field(max_length=64)]
    data_offsets: tuple[Count, Count]

    @property
    def length(self) -> int:
        """How many bytes its values take by dtype and shape."""
        if self.dtype not in _DTYPES:
            raise ValueError(f"unknown dtype {self.dtype[:20]!r}")
        return math.prod(self.shape) * _DTYPES[self.dtype][1]


_HEADER: TypeAdapter[dict[str, _Entry]] = TypeAdapter(dict[str, _Entry])


def model_file_digest(path: Path) -> str:
    """Return the digest of the model in a safetensors file."""
    try:
        with files.open_regular(path) as file:
            entries, start = _read_header(file)
            sha = hashlib.sha256()
            for name in sorted(entries):
                entry = entries[name]
                header = json.dumps([name, _DTYPES[entry.dtype][0], list(entry.shape)])
                sha.update(f"{len(header)}:{header}".encode())
                for piece in _values(file, start, entry):
                    sha.update(piece)
            return sha.hexdigest()
    except FileNotFoundError:
        raise StateError(f"{path}: no such file") from None
    except (OSError, ValueError, struct.error) as error:
        fault = "its header is none" if isinstance(error, ValidationError) else error
        raise StateError(f"{path}: not a readable safetensors file ({fault})") from error


def _read_header(file: BinaryIO) -> tuple[Mapping[str, _Entry], int]:
    """Return the tensors by name, and where their values begin."""
    (length,) = struct.unpack("<Q", file.read(8))
    if length > _MAX_HEADER_BYTES:
        raise ValueError("its header is too long")
    text = file.read(length)
    if len(text) < length:
        raise ValueError("its header is cut off")
    content = parse_json(text.decode(), object_pairs_hook=_once)
    if not isinstance(content, dict):
        raise ValueError("its header is no object")
    content.pop("__metadata__", None)
    entries = _HEADER.validate_json(json.dumps(content), strict=True)
    end = 0
    for entry in sorted(entries.values(), key=lambda each: each.data_offsets):
        first, last = entry.data_offsets
        if first != end or last - first != entry.length:
            raise ValueError("its tensors do not lie one after the other")
        end = last
    start = 8 + length
    if file.seek(0, 2) != start + end:
        raise ValueError("its values are cut off, or something follows them")
    return entries, start


def _values(file: BinaryIO, start: int, entry: _Entry) -> Iterator[bytes]:
    first, last = entry.data_offsets
    file.seek(start + first)
    for place in range(first, last, _PIECE):
        yield file.read(min(_PIECE, last - place))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found
