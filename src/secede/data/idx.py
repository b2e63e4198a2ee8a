"""Read idx files, the format of MNIST and EMNIST, gzipped or plain.

The header is checked before anything is allocated, and the payload must be exactly as long as
the header says. `gzip` reads on over parts that hold nothing, some microseconds each, until it has
a byte to return: a large file of them takes minutes. Here the bytes that are read, and the parts
that they come in, are bounded by what they unpack to.
"""

from __future__ import annotations

import io
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

LIMIT_BYTES = 600_000_000  # EMNIST's largest split has 547 MB
# What gzip may unpack to, whatever the packed size, and times that size.
_UNPACKED_BYTES, _UNPACKED_TIMES = 64 * 1024**2, 50
_CHUNK_BYTES = 1024**2
_GZIP = 16 + zlib.MAX_WBITS  # of zlib: a header and a checksum around each part
_PACKED_CHUNK_BYTES = 16 * 1024
# What may be read beyond the unpacked bytes, of which deflate's own overhead is a thousandth.
_FREE_BYTES = 1024**2
# Parts that any file may have, and bytes of content for each further one. `bgzip` has 64 KiB.
_FREE_PARTS, _PART_BYTES = 1_000, 1024
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
            _check_ratio(math.prod(shape), path, packed=isinstance(file, Unpacked))
            payload = _read_payload(file, path, math.prod(shape))
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: truncated or damaged gzip data; replace the file") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    return np.frombuffer(payload, np.uint8).reshape(shape)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file, and unpack it if it is gzipped."""
    with files.open_regular(path) as raw:
        # The content decides, not the name: some tools unpack and keep the suffix.
        start = raw.read(2)
        raw.seek(0)
        if start == b"\x1f\x8b":
            yield Unpacked(raw, path)
        else:
            yield raw


def _read_header(file: IO[bytes], path: Path, kind: str) -> tuple[int, ...]:
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
        raise DataError(
            f"{path}: its header announces {shape} bytes, at most {LIMIT_BYTES:,} are allowed"
        )
    if 0 in shape:
        raise DataError(f"{path}: its header announces {shape}, which is no sample at all")
    return shape


def _check_ratio(size: int, path: Path, *, packed: bool) -> None:
    limit = max(_UNPACKED_BYTES, _UNPACKED_TIMES * path.stat().st_size)
    if packed and size > limit:
        raise DataError(f"{path}: would unpack to {size:,} bytes, more than {limit:,} are allowed")


def _read_payload(file: IO[bytes], path: Path, size: int) -> bytearray:
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


class Unpacked(io.BufferedReader):
    """The content of a gzipped file; EOFError or zlib.error where it is damaged."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        super().__init__(_Inflater(file, path))


class _Inflater(io.RawIOBase):
    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self._part = zlib.decompressobj(_GZIP)
        self._packed = b""  # read, and not yet unpacked
        self._parts, self._read_bytes, self._unpacked_bytes = 1, 0, 0

    def readable(self) -> bool:
        """Return whether it can be read: always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # as it is called
        """Unpack into `buffer` and return how many bytes; 0 at the end of the file."""
        while not self._part.eof or self._begin_part():
            if not self._packed:
                self._packed = self._read_packed()
            ended = not self._packed
            content = self._part.decompress(self._packed, len(buffer))
            self._packed = self._part.unused_data or self._part.unconsumed_tail
            if content:
                buffer[: len(content)] = content
                self._unpacked_bytes += len(content)
                return len(content)
            if ended and not self._part.eof:
                raise EOFError("the file ends within a part")
        return 0

    def _begin_part(self) -> bool:
        """Begin the part that follows one that ended; False if none does."""
        # Zeros after a part are padding, as `gzip` has it.
        while not (packed := self._packed.lstrip(b"\0")):
            self._packed = self._read_packed()
            if not self._packed:
                return False
        self._packed, self._part = packed, zlib.decompressobj(_GZIP)
        self._parts += 1
        if self._parts > _FREE_PARTS + self._unpacked_bytes // _PART_BYTES:
            raise DataError(
                f"{self._path}: {self._parts:,} gzip parts hold {self._unpacked_bytes:,} bytes "
                "together; pack it again, in one"
            )
        return True

    def _read_packed(self) -> bytes:
        limit = _FREE_BYTES + self._unpacked_bytes + self._unpacked_bytes // 10
        if self._read_bytes > limit:
            raise DataError(
                f"{self._path}: {self._read_bytes:,} gzipped bytes hold {self._unpacked_bytes:,}; "
                "replace the file"
            )
        packed = self._file.read(_PACKED_CHUNK_BYTES)
        self._read_bytes += len(packed)
        return packed
