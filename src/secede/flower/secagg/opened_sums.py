"""Which sums were opened: of whose updates, and from which model.

Two sums from one model that differ by one client tell that client's update. So each is written down
before its masks are taken off, and another from the same model is of the same clients or of none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

from pydantic import ValidationError

from secede import files
from secede.erasure.canonical_json import to_canonical
from secede.erasure.types import Digest, Document, Name, describe_errors
from secede.errors import GuardError, RecordError, SilentError, StorageError
from secede.text import short_digest


class OpenedSum(Document):
    """One sum."""

    start: Digest  # of the model that the clients trained from
    clients: tuple[Name, ...]


class OpenedSums:
    """A file in the home, one line for each sum; one that a kill cut off was never opened."""

    def __init__(self, home: Path) -> None:
        self._path = home / "opened.jsonl"

    def agreed(self, start: str, there: Collection[str]) -> frozenset[str]:
        """Return who of those who are there may take part; SilentError if somebody is missing."""
        before = self.before(start)
        if before is None:
            return frozenset(there)
        if missing := sorted(before - {*there}):
            raise SilentError(
                f"a sum from model {short_digest(start)} was opened with "
                f"{', '.join(sorted(before))}, and "
                f"another without {', '.join(missing)} would tell about single updates: start "
                "again when all of them are there, or go on from another model"
            )
        return before

    def add(self, start: str, clients: Collection[str]) -> None:
        """Write down that a sum is opened now; it is refused after one of other clients."""
        before = self.before(start)
        if self.agreed(start, clients) != {*clients}:
            raise GuardError(
                f"a sum from model {short_digest(start)} was opened with fewer clients"
            )
        if before is not None:
            return
        line = to_canonical(OpenedSum(start=start, clients=tuple(sorted(clients))).model_dump())
        if not self._path.exists():
            files.write_bytes(self._path, line + b"\n")  # which waits for the folder, too
            return
        try:
            os.truncate(self._path, self._path.read_bytes().rfind(b"\n") + 1)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from error
        files.append_line(self._path, line.decode())

    def before(self, start: str) -> frozenset[str] | None:
        """Return whose sum from this model was opened; None: nobody's."""
        if not self._path.exists():
            return None
        *lines, _cut = self._path.read_bytes().split(b"\n")
        try:
            for line in lines:
                found = OpenedSum.model_validate(json.loads(line), strict=False)
                if found.start == start:
                    return frozenset(found.clients)
        except (ValueError, ValidationError) as error:
            told = describe_errors(error) if isinstance(error, ValidationError) else error
            raise RecordError(
                f"{self._path}: damaged ({told}); restore it from a backup"
            ) from error
        return None
