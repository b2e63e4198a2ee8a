"""Atomic files and locks: a file is there whole or not at all, whenever a process is killed.

Written under a temporary name, synced, then moved into place. In `private` files and folders are
made for their owner alone.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from secede.errors import RecordError, StorageError

PARTS = ".*.part"  # the temporary names; a kill leaves such a file behind
_LOCK_PAUSE = 0.05  # seconds between attempts to get a lock
_PRIVATE: ContextVar[bool] = ContextVar("private", default=False)


class LockedError(RecordError):
    """A file or folder that another process has locked."""


@contextmanager
def private() -> Iterator[None]:
    """Make all files of the block with mode 0600, and new folders with 0700, whatever the umask."""
    token = _PRIVATE.set(True)
    try:
        yield
    finally:
        _PRIVATE.reset(token)


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents; in `private` for the owner alone."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700 if _PRIVATE.get() else 0o777, exist_ok=True)


@contextmanager
def replace(path: Path, *, sync_folder: bool = True) -> Iterator[Path]:
    """Yield a temporary file beside `path` that replaces it if the block succeeds.

    Without `sync_folder` the caller syncs the folder, by a file that it replaces there next.
    """
    with _storage_errors(path), temporary_file(path) as temporary:
        yield temporary
        move(temporary, path, sync_folder=sync_folder)


@contextmanager
def temporary_file(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Yield a new empty file beside `path`, and remove it unless it was moved into place."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    # `touch` applies the umask, which could only be read by changing it for all threads.
    temporary.touch(mode=_file_mode() if mode is None else mode, exist_ok=False)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def move(temporary: Path, path: Path, *, sync_folder: bool = True) -> None:
    """Sync a file and move it to `path`, replacing what is there in one step."""
    sync(temporary)
    os.replace(temporary, path)
    if sync_folder:
        sync(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` with `content` in one step."""
    with replace(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Replace `path` with `content` in one step, as UTF-8."""
    write_bytes(path, content.encode())


def create(path: Path, content: bytes, mode: int) -> None:
    """Write a new file in one step; raise FileExistsError and change nothing if it is there."""
    existing: FileExistsError | None = None
    with _storage_errors(path), temporary_file(path, mode) as temporary:
        temporary.write_bytes(content)
        sync(temporary)
        try:
            os.link(temporary, path)  # unlike a rename, it fails where there is a file already
        except FileExistsError as error:
            existing = error
        sync(path.parent)
    if existing is not None:
        raise existing


def append_line(path: Path, line: str) -> None:
    """Append one line and wait until it is on the disk."""
    try:
        mode = _file_mode()
        with open(path, "ab", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"cannot append to {path}: {error.strerror}") from error


@contextmanager
def lock(path: Path, *, timeout: float | None = None, mode: int | None = None) -> Iterator[int]:
    """Lock a file, which is made if it is missing, and yield its descriptor.

    Another process waits at most `timeout` seconds and then gets a LockedError. The lock ends with
    the process that has it.
    """
    with _storage_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _file_mode() if mode is None else mode)
    try:
        _wait_for_lock(descriptor, path, timeout)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, so that others who lock it wait; for a change to a file in it."""
    with _storage_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _wait_for_lock(descriptor, folder, None)
        yield
    finally:
        os.close(descriptor)


def remove_parts(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder and below."""
    try:
        for part in folder.rglob(PARTS):
            part.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot delete in {folder}: {error.strerror}") from error


def check_single(path: Path) -> None:
    """Raise if deleting `path` would leave its content: it is a link, or has further names."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot delete {path}: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        raise StorageError(
            f"{path} is a symbolic link: deleting it would leave the file that it names; put that "
            "file in its place"
        )
    if status.st_nlink > 1:
        raise StorageError(
            f"{path} has {status.st_nlink} names (hard links): deleting one would leave the "
            "content; remove the others"
        )


def delete(path: Path) -> None:
    """Delete a file if it is there; refuse one whose content would stay under another name."""
    check_single(path)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot delete {path}: {error.strerror}") from error


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes; OSError for a pipe or a device, which might never end."""
    # A pipe that nobody writes to would make an ordinary `open` wait.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        yield file


def read_limited(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes, or raise an OSError."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"over {limit:,} bytes, the limit of such a file")
    return data


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the hexadecimal digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def _file_mode() -> int:
    return 0o600 if _PRIVATE.get() else 0o666


def _wait_for_lock(descriptor: int, path: Path, timeout: float | None) -> None:
    if timeout is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    end = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= end:
                raise LockedError(f"{path} is locked by another process") from error
            time.sleep(_LOCK_PAUSE)
