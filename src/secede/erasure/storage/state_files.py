"""State files: the states of an erasure in progress, as safetensors files named by their digests.

A file is whole or absent. What a method remembers between rounds lies in the same file.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from secede import files
from secede import state as states
from secede.errors import StateError, StorageError
from secede.state import State

_MEMORY = "memory::"  # begins the names of what a method remembers


class StateFiles:
    """A folder of states that is deleted when its erasure ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, state: State, memory: Mapping[str, Tensor] | None = None, *, digest: str) -> str:
        """Write a state and the method's memory; return the name that `get` takes.

        `digest` is the state's own.
        """
        content = {**state, **{f"{_MEMORY}{name}": v for name, v in (memory or {}).items()}}
        name = states.digest(content) if memory else digest
        states.save(content, self._path(name))
        return name

    def get(self, name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return a state and the method's memory; StateError if it is lost or damaged."""
        content, _ = states.load(self._path(name))
        if states.digest(content) != name:
            raise StateError(f"{self._path(name)}: its values are not those that were written")
        memory = {n.removeprefix(_MEMORY): v for n, v in content.items() if n.startswith(_MEMORY)}
        return {n: v for n, v in content.items() if not n.startswith(_MEMORY)}, memory

    def drop(self, name: str) -> None:
        """Delete one state."""
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete {self._path(name)}: {error.strerror}") from error

    def check(self) -> None:
        """Raise if deleting the states would leave any: a link, or a file with further names."""
        if self._folder.is_symlink():
            raise StorageError(
                f"{self._folder} is a symbolic link: deleting it would leave the states in the "
                "folder that it names; put that folder in its place"
            )
        if self._folder.exists():
            for path in self._folder.iterdir():
                files.check_single(path)

    def destroy(self) -> None:
        """Delete all states, and what a kill left half written."""
        self.check()
        try:
            if self._folder.exists():
                shutil.rmtree(self._folder)
        except OSError as error:
            raise StorageError(
                f"cannot delete the states in {self._folder}: {error.strerror}"
            ) from error

    def _path(self, name: str) -> Path:
        if not re.fullmatch("[0-9a-f]{64}", name):
            raise StateError(f"{name[:80]!r} names no state file: expected 64 hexadecimal digits")
        return self._folder / f"{name}.safetensors"
