"""Read a user's own data set from an `.npz` file with x_train, y_train, x_test and y_test.

Nothing is unpickled, and each array's header is compared with the bytes that are there before
memory is taken for it.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from secede import files
from secede.data.samples import Dataset, Samples
from secede.data.tensors import to_inputs, to_labels
from secede.errors import DataError
from secede.text import format_bytes, one_line

KEYS = ("x_train", "y_train", "x_test", "y_test")
LIMIT_BYTES = 4 * 1024**3
LIMIT_CLASSES = 100_000
# In memory all arrays together may have this, whatever the file's size, and times that size: a
# small file can unpack to a thousand times as much.
_FREE_BYTES, _FREE_TIMES = 600_000_000, 20
_BYTES_OF_A_NUMBER = 8  # besides those in the file: inputs become floats, labels int64
_HEADER_BYTES = 65_536
_DIRECTORY_BYTES = 1024**2  # of the archive's list of members, of which an .npz has four
# Of a member's packed bytes beyond those that it unpacks to: deflate itself adds a thousandth.
_PACKED_BYTES = 65_536


def read(path: Path) -> Dataset:
    """Return the data set in `path`; its classes are called "0", "1" and so on."""
    arrays = _read_arrays(path)
    train, test = (_samples(arrays, part, path) for part in ("train", "test"))
    highest = max(int(train.y.max()), int(test.y.max()))
    if highest >= LIMIT_CLASSES:
        raise DataError(f"{path}: found label {highest}; number the classes from 0 without gaps")
    # Counted, since sorting takes some times the labels' memory.
    in_train, in_test = (part.y.bincount(minlength=highest + 1) > 0 for part in (train, test))
    if unseen := (in_test & ~in_train).nonzero().flatten().tolist():
        raise DataError(
            f"{path}: y_test has class {unseen[0]}, of which y_train has no sample: number the "
            "classes from 0 in both, or leave those samples out"
        )
    if train.shape != test.shape:
        raise DataError(
            f"{path}: x_train holds samples of shape {train.shape}, x_test of {test.shape}"
        )
    return Dataset(path.name, train, test, tuple(str(label) for label in range(highest + 1)))


def _read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with files.open_regular(path) as file, zipfile.ZipFile(_Archive(file)) as archive:
            members = set(archive.namelist())
            if missing := [key for key in KEYS if f"{key}.npy" not in members]:
                raise DataError(
                    f"{path}: lacks {', '.join(missing)}; expected {', '.join(KEYS)}, "
                    f"found {sorted(members)!r:.200}"
                )
            needed = sum(_memory(archive, key, path) for key in KEYS)
            limit = max(_FREE_BYTES, _FREE_TIMES * path.stat().st_size)
            if needed > limit:
                raise DataError(
                    f"{path}: its arrays would take {format_bytes(needed)}, more than the "
                    f"{format_bytes(limit)} allowed for a file of its size; save it unpacked, by "
                    "numpy.savez"
                )
            return {key: _read_array(archive, key, path) for key in KEYS}
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise DataError(f"{path}: not an .npz file, or a damaged one ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


class _Archive:
    """A file that `zipfile` reads: at once what it takes for the list of members, however long."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > _DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"a list of members, or a number, of {size:,} bytes")
        return self._file.read(size)


@contextmanager
def _member(archive: zipfile.ZipFile, key: str, path: Path) -> Iterator[IO[bytes]]:
    try:
        with archive.open(f"{key}.npy") as member:
            yield member
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy's header parser fail in many ways
        reason = one_line(error)
        raise DataError(f"{path}: {key} is damaged or cannot be read ({reason:.200})") from error


def _read_array(archive: zipfile.ZipFile, key: str, path: Path) -> NDArray[np.generic]:
    with _member(archive, key, path) as member:
        array: NDArray[np.generic] = npy.read_array(member, allow_pickle=False)
    return array


def _memory(archive: zipfile.ZipFile, key: str, path: Path) -> int:
    """Return how many bytes an array will take, from its headers, which are checked."""
    info = archive.getinfo(f"{key}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path}: {key} is packed as numpy packs nothing; save it by numpy.savez")
    if info.compress_size > info.file_size + info.file_size // 10 + _PACKED_BYTES:
        raise DataError(
            f"{path}: {key} has {info.file_size:,} bytes packed into {info.compress_size:,}; "
            "replace the file"
        )
    with _member(archive, key, path) as member:
        header = io.BytesIO(member.read(_HEADER_BYTES))  # however long it says it is
        return _check_header(header, info.file_size, f"{path}: {key}")


def _check_header(member: IO[bytes], file_bytes: int, source: str) -> int:
    version = npy.read_magic(member)
    if version not in {(1, 0), (2, 0)}:
        raise DataError(f"{source}: array format {version}, expected 1.0 or 2.0 as numpy.savez has")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(member)
    if dtype.hasobject:
        raise DataError(f"{source}: holds Python objects, expected a plain array of numbers")
    announced, present = math.prod(shape) * dtype.itemsize, file_bytes - member.tell()
    if announced != present:
        raise DataError(
            f"{source}: announces shape {shape}, {announced:,} bytes, but holds {present:,}"
        )
    if announced > LIMIT_BYTES:
        raise DataError(f"{source}: {announced:,} bytes when unpacked, at most 4 GiB are allowed")
    return announced + _BYTES_OF_A_NUMBER * math.prod(shape)


def _samples(arrays: dict[str, NDArray[np.generic]], part: str, path: Path) -> Samples:
    x = _channels_first(to_inputs(arrays[f"x_{part}"], f"{path}: x_{part}"), f"{path}: x_{part}")
    y = to_labels(arrays[f"y_{part}"], f"{path}: y_{part}")
    if not x[0].numel():
        raise DataError(f"{path}: x_{part} has shape {tuple(x.shape)}, samples without a value")
    if len(x) != len(y):
        raise DataError(f"{path}: x_{part} holds {len(x):,} samples but y_{part} {len(y):,} labels")
    return Samples(x, y)


def _channels_first(x: Tensor, source: str) -> Tensor:
    if x.ndim == 2:
        return x
    if x.ndim == 3:
        return x.unsqueeze(1)
    if x.ndim != 4:
        raise DataError(
            f"{source}: shape {tuple(x.shape)}, expected (n, features), (n, height, width), "
            "(n, channels, height, width) or (n, height, width, channels)"
        )
    # Ambiguous shapes, such as (n, 3, 32, 3), are taken as they are: channels first.
    channels_last = x.shape[3] in (1, 3) and x.shape[1] not in (1, 3)
    return x.permute(0, 3, 1, 2).contiguous() if channels_last else x
