"""Files that are made once: whole or absent, never over another, with their permissions at once."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from secede import files
from secede.errors import StorageError


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that is not there yet; one that is raises FileExistsError and stays."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        files.make_folder(path.parent)
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
