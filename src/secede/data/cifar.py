"""Read CIFAR-10's Python batches without trusting them.

They are Python 2 pickles. Only the opcodes and the three numpy names that upstream's files use
are admitted, and those names are bound to inert stand-ins: neither numpy nor any other code
acts on what a file says.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from secede import files
from secede.data import idx
from secede.errors import DataError
from secede.text import one_line

ARCHIVE_FOLDER = "cifar-10-batches-py"
LIMIT_BYTES = 40_000_000  # upstream's batches have 31 MB
_LIMIT_ARCHIVE_BYTES = 250_000_000  # upstream's unpacks to 186 MB
_LIMIT_MEMBERS = 1_000
_LIMIT_OPCODES = 200_000  # upstream's have about 40,000
# Upstream's have 6 tuples and fetch nothing from the memo. A tuple of one that was fetched thrice,
# and so on, is as many times as large to whatever walks through it.
_LIMIT_NESTING = 16
_PIXELS = 3 * 32 * 32
_OPCODES = re.compile(
    "PROTO|STOP|MARK|GLOBAL|REDUCE|BUILD|EMPTY_DICT|SETITEMS|EMPTY_LIST|APPENDS"
    "|TUPLE[123]?|NONE|NEWFALSE|BININT[12]?|(SHORT_)?BINSTRING|(LONG_)?BIN(PUT|GET)"
)


@dataclass(frozen=True, eq=False)
class Batch:
    """Images (n, 3, 32, 32) and labels (n,) of one file."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def read(paths: Mapping[str, Path]) -> dict[str, Batch]:
    """Return the batches in the files given by name."""
    return {name: parse(_content(path), str(path)) for name, path in paths.items()}


def read_archive(path: Path, names: Sequence[str]) -> dict[str, Batch]:
    """Return the named batches in upstream's archive, without unpacking it to the disk."""
    batches = {name: parse(content, f"{path}: {name}") for name, content in _members(path, names)}
    if missing := [name for name in names if name not in batches]:
        raise DataError(f"{path}: lacks {', '.join(missing)} in {ARCHIVE_FOLDER}")
    return batches


def parse(content: bytes, source: str) -> Batch:
    """Return the batch that a pickle holds; `source` names it in errors."""
    _check_opcodes(content, source)
    try:
        loaded = _Reader(io.BytesIO(content), encoding="bytes").load()
    except _RefusedError as error:
        raise DataError(f"{source}: refused, {error}") from error
    except Exception as error:  # a pickle made to do harm may fail in any way
        raise DataError(f"{source}: not a CIFAR-10 batch ({error}); replace the file") from error
    return _batch(loaded, source)


class _RefusedError(Exception):
    """The pickle asks for something that upstream's files do not contain."""


class _Name:
    """Stand-in for a numpy name: it can be passed around, and nothing else."""

    def __setstate__(self, state: object) -> None:
        raise _RefusedError("it changes a global name")


class _MakeType(_Name):
    """Stands in for `numpy.dtype`."""

    def __call__(self, *arguments: object) -> _Type:
        if arguments[:1] != (b"u1",):
            raise _RefusedError("it holds numbers of another type, expected bytes")
        return _Type()


class _MakeArray(_Name):
    """Stands in for `numpy.core.multiarray._reconstruct`."""

    def __call__(self, kind: object, shape: object, code: object) -> _Array:
        if shape != (0,):
            raise _RefusedError("it builds an array with a shape out of nothing")
        return _Array()


class _Type:
    def __setstate__(self, state: object) -> None:
        pass  # byte order and alignment, which bytes do not have


class _Array:
    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.content = b""

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, fortran, content = state
        if not isinstance(kind, _Type) or fortran or not isinstance(content, bytes):
            raise _RefusedError("its pixels are not bytes in C order")
        if type(shape) is not tuple or [type(size) for size in shape] != [int, int]:
            raise _RefusedError(
                f"its pixels have no shape of two numbers but {len(content):,} bytes"
            )
        if len(content) != math.prod(shape):
            raise _RefusedError(f"its pixels have shape {shape} but {len(content):,} bytes")
        self.shape, self.content = shape, content


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        """Return a stand-in for one of the three names; refuse every other."""
        # Fresh ones each time: a file cannot leave a trace in the next.
        match module, name:
            case "numpy.core.multiarray", "_reconstruct":
                return _MakeArray()
            case "numpy", "ndarray":
                return _Name()
            case "numpy", "dtype":
                return _MakeType()
        raise _RefusedError(f"it names {f'{module}.{name}'!r:.60}, which no CIFAR-10 batch does")


def _check_opcodes(content: bytes, source: str) -> None:
    nesting = 0
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            nesting += "TUPLE" in opcode.name or "GET" in opcode.name
            if nesting > _LIMIT_NESTING:
                raise DataError(f"{source}: refused, its pickle is nested as no CIFAR-10 batch is")
            if not _OPCODES.fullmatch(opcode.name) or count > _LIMIT_OPCODES:
                raise DataError(
                    f"{source}: refused, its pickle holds {opcode.name} at step {count:,}, "
                    "which no CIFAR-10 batch does"
                )
            # The memo is an array as long as its highest index.
            if "PUT" in opcode.name and int(argument or 0) > _LIMIT_OPCODES:
                raise DataError(f"{source}: refused, its pickle asks for {argument:,} memo entries")
    except ValueError as error:
        raise DataError(
            f"{source}: truncated, or no CIFAR-10 batch ({error}); replace the file"
        ) from error


def _batch(loaded: object, source: str) -> Batch:
    data = loaded.get(b"data") if isinstance(loaded, dict) else None
    labels = loaded.get(b"labels") if isinstance(loaded, dict) else None
    if not isinstance(data, _Array) or not isinstance(labels, list):
        raise DataError(f"{source}: lacks the data or the labels of a CIFAR-10 batch")
    if len(data.shape) != 2 or data.shape[1] != _PIXELS:
        raise DataError(f"{source}: pixels of shape {data.shape}, expected (n, {_PIXELS})")
    if not all(isinstance(label, int) and 0 <= label <= 9 for label in labels):
        raise DataError(f"{source}: its labels are not whole numbers from 0 to 9")
    if len(labels) != data.shape[0]:
        raise DataError(f"{source}: {data.shape[0]:,} images but {len(labels):,} labels")
    images = np.frombuffer(data.content, np.uint8).reshape(-1, 3, 32, 32)
    return Batch(images, np.array(labels, np.int64))


def _content(path: Path) -> bytes:
    try:
        with files.open_regular(path) as file:
            content = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    _check_size(len(content), str(path))
    return content


def _members(path: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    try:
        with idx.opened(path) as archive:
            yield from _walk(archive, path, names)
    except (EOFError, zlib.error, tarfile.TarError, OSError) as error:
        reason = one_line(error)
        raise DataError(f"{path}: truncated or damaged archive ({reason:.80})") from error


def _walk(archive: IO[bytes], path: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted members: `tarfile` itself follows long headers wherever they lead."""
    total = 0
    for _ in range(_LIMIT_MEMBERS):
        block = archive.read(tarfile.BLOCKSIZE)
        if total and not block.strip(b"\0"):  # the end
            return
        member = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
        _check_size(member.size, f"{path}: {member.name!r}")
        padded = -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        total += tarfile.BLOCKSIZE + padded
        if total > _LIMIT_ARCHIVE_BYTES:
            break
        content = archive.read(padded)[: member.size]
        folder, _, name = member.name.rpartition("/")
        if member.isreg() and folder == ARCHIVE_FOLDER and name in names:
            yield name, content
    raise DataError(f"{path}: too large for CIFAR-10's archive, which has 8 files and 186 MB")


def _check_size(size: int, source: str) -> None:
    if size > LIMIT_BYTES:
        raise DataError(f"{source}: over {LIMIT_BYTES:,} bytes, too large for a CIFAR-10 batch")
