"""The sums of updates that were opened: of which clients, and from which model.

Two sums from one model that differ by one client reveal that client's update. So each sum is
recorded before it is unmasked, and another one from the same model must be of the same clients.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

from pydantic import ValidationError

from secede import files
from secede.erasure import Digest, Document, Name, describe_errors, to_canonical
from secede.errors import GuardError, RecordError, SilentError, StorageError
from secede.text import short_digest


class OpenedSum(Document):
    """One sum of updates."""

    start: Digest  # of the model that the clients trained from
    clients: tuple[Name, ...]


class OpenedSums:
    """A file in the home with a line for each sum. A line that a kill cut off does not count."""

    def __init__(self, home: Path) -> None:
        self._path = home / "opened.jsonl"

    def allowed_clients(self, start: str, online: Collection[str]) -> frozenset[str]:
        """Return which clients may take part; SilentError if one that must is not online."""
        before = self.opened_with(start)
        if before is None:
            return frozenset(online)
        if missing := sorted(before - {*online}):
            raise SilentError(
                f"a sum from model {short_digest(start)} was opened with "
                f"{', '.join(sorted(before))}, and another without {', '.join(missing)} would "
                "reveal single updates: start again when all of them are online, or go on from "
                "another model"
            )
        return before

    def add(self, start: str, clients: Collection[str]) -> None:
        """Record that a sum is opened now; GuardError after a sum of fewer clients."""
        before = self.opened_with(start)
        if self.allowed_clients(start, clients) != {*clients}:
            raise GuardError(
                f"a sum from model {short_digest(start)} was opened with fewer clients"
            )
        if before is not None:
            return
        line = to_canonical(OpenedSum(start=start, clients=tuple(sorted(clients))).model_dump())
        if not self._path.exists():
            files.write_bytes(self._path, line + b"\n")  # which syncs the folder, too
            return
        try:
            os.truncate(self._path, self._path.read_bytes().rfind(b"\n") + 1)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from error
        files.append_line(self._path, line.decode())

    def opened_with(self, start: str) -> frozenset[str] | None:
        """Return the clients of the sum that was opened from this model; None if none was."""
        if not self._path.exists():
            return None
        *lines, _cut = self._path.read_bytes().split(b"\n")
        try:
            for line in lines:
                opened = OpenedSum.model_validate(json.loads(line), strict=False)
                if opened.start == start:
                    return frozenset(opened.clients)
        except (ValueError, ValidationError) as error:
            fault = describe_errors(error) if isinstance(error, ValidationError) else error
            raise RecordError(
                f"{self._path}: damaged ({fault}); restore it from a backup"
            ) from error
        return None
