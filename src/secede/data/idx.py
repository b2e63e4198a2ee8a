"""Read idx files, the format of MNIST and EMNIST, gzipped or plain.

The header is checked before anything is allocated, and the payload must be exactly as long as
the header says.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from secede import files
from secede.errors import DataError

LIMIT_BYTES = 2 * 1024**3
# What gzip may unpack to, whatever the packed size, and times that size.
_UNPACKED_BYTES, _UNPACKED_TIMES = 64 * 1024**2, 50
_CHUNK_BYTES = 1024**2
_DIMENSIONS = {"labels": 1, "images": 3}
# Unsigned bytes in one and in three dimensions.
_MAGIC = {b"\0\0\x08\x01": "labels", b"\0\0\x08\x03": "images"}


def read_images(path: Path) -> NDArray[np.uint8]:
    """Return the images of an idx3-ubyte file as (count, rows, columns)."""
    return _read(path, "images")


def read_labels(path: Path) -> NDArray[np.uint8]:
    """Return the labels of an idx1-ubyte file as (count,)."""
    return _read(path, "labels")


def _read(path: Path, kind: str) -> NDArray[np.uint8]:
    try:
        with opened(path) as file:
            shape = _read_header(file, path, kind)
            _check_ratio(math.prod(shape), path, packed=isinstance(file, gzip.GzipFile))
            payload = _read_payload(file, path, math.prod(shape))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: truncated or damaged gzip data; replace the file") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    return np.frombuffer(payload, np.uint8).reshape(shape)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a regular file, and unpack it if it is gzipped."""
    with files.open_regular(path) as raw:
        # The content decides, not the name: some tools unpack and keep the suffix.
        start = raw.read(2)
        raw.seek(0)
        if start == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield unpacked
        else:
            yield raw


def _read_header(file: IO[bytes] | gzip.GzipFile, path: Path, kind: str) -> tuple[int, ...]:
    magic = file.read(4)
    found = _MAGIC.get(magic, "no idx file")
    if found != kind:
        raise DataError(
            f"{path}: found {found} (it starts with {magic.hex() or 'nothing'}), "
            f"expected an idx file of {kind}"
        )
    sizes = file.read(4 * _DIMENSIONS[kind])
    if len(sizes) < 4 * _DIMENSIONS[kind]:
        raise DataError(f"{path}: ends inside its header; replace the file")
    shape = struct.unpack(f">{_DIMENSIONS[kind]}I", sizes)
    if math.prod(shape) > LIMIT_BYTES:
        raise DataError(f"{path}: its header announces {shape} bytes, more than the 2 GiB allowed")
    if 0 in shape:
        raise DataError(f"{path}: its header announces {shape}, which is no sample at all")
    return shape


def _check_ratio(size: int, path: Path, *, packed: bool) -> None:
    limit = max(_UNPACKED_BYTES, _UNPACKED_TIMES * path.stat().st_size)
    if packed and size > limit:
        raise DataError(f"{path}: would unpack to {size:,} bytes, more than {limit:,} are allowed")


def _read_payload(file: IO[bytes] | gzip.GzipFile, path: Path, size: int) -> bytearray:
    payload = bytearray()
    # In chunks, so that a header which promises too much costs no memory.
    while chunk := file.read(min(_CHUNK_BYTES, size - len(payload))):
        payload += chunk
    if len(payload) < size:
        raise DataError(
            f"{path}: truncated, it holds {len(payload):,} of the {size:,} bytes its header "
            "announces; replace the file"
        )
    if file.read(1):
        raise DataError(
            f"{path}: holds more than the {size:,} bytes its header announces; replace the file"
        )
    return payload
