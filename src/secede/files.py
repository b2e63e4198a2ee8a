"""Files that are either whole or absent: temporary file, fsync, rename, fsync of the folder.

Inside `private` they are made for their owner alone, and so are the folders that they need.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from secede.errors import StorageError

_PRIVATE: ContextVar[bool] = ContextVar("private", default=False)


@contextmanager
def private() -> Iterator[None]:
    """Let all files that the block makes be 0600, and new folders 0700, whatever the umask."""
    token = _PRIVATE.set(True)
    try:
        yield
    finally:
        _PRIVATE.reset(token)


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing; inside `private`, for the owner alone."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700 if _PRIVATE.get() else 0o777, exist_ok=True)


@contextmanager
def replacing(path: Path, *, sync_folder: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes `path`'s place only if the block succeeds.

    Without `sync_folder` the caller syncs the folder, by a file that it replaces there next.
    """
    try:
        make_folder(path.parent)
        # Made like any other file, so that it has the usual permissions without asking for the
        # umask: that is only told by changing it, for all threads.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        temporary.touch(mode=0o600 if _PRIVATE.get() else 0o666, exist_ok=False)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        if sync_folder:
            _sync(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` with `content` in one step."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Replace `path` with `content` in one step, as UTF-8."""
    write_bytes(path, content.encode())


def append_line(path: Path, line: str) -> None:
    """Append one line and wait until it is on the disk."""
    try:
        with path.open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"cannot append to {path}: {error.strerror}") from error


def check_single(path: Path) -> None:
    """Raise if deleting `path` would leave its content: it is a link, or has further names."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot delete {path}: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        raise StorageError(
            f"{path} is a symbolic link: deleting it would leave the file that it names; put that "
            "file in its place"
        )
    if found.st_nlink > 1:
        raise StorageError(
            f"{path} has {found.st_nlink} names (hard links): deleting one would leave the "
            "content; remove the others"
        )


def destroy(path: Path) -> None:
    """Delete a file if it is there; one whose content would stay under another name is refused."""
    check_single(path)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot delete {path}: {error.strerror}") from error


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder, so that others who hold it too wait: to change a file that is there."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StorageError(f"cannot use the folder {folder}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the hexadecimal digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that is not there yet; one that is raises FileExistsError and stays."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        make_folder(path.parent)
    except OSError as error:
        raise StorageError(f"cannot make the folder {path.parent}: {error.strerror}") from error
    try:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # unlike a rename, it fails where there is a file already
        finally:
            temporary.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
