"""What a client keeps of itself on its own disk: its last updates, and nothing of anybody else's.

Each is a safetensors file named by its digest; `index.json` tells run, round and samples, the
newest first. The last two stay, and the one that the server says is in the serving model: a round
that led nowhere must not cost the client the update that counts. A kill leaves all or nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError
from torch import Tensor

from secede import files
from secede import state as states
from secede.erasure.canonical import canonical, parse, read
from secede.erasure.fields import Count, Digest, Document, faults
from secede.errors import RecordError, SecedeError, StateError, StorageError
from secede.state import State

_LIMIT = 1 << 20
_NEWEST = 2  # the last one, and the one before in case the server never aggregated the last


class Kept(Document):
    """An update that the client has: what it is, and where it comes from."""

    digest: Digest
    run: str
    round: Count
    samples: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Index(Document):
    """All that the client has, the newest first."""

    version: Literal[1] = 1
    updates: tuple[Kept, ...] = ()


class Updates:
    """A folder with a client's own last updates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(
        self, state: State, *, run: str, number: int, samples: float, serving: str | None = None
    ) -> Kept:
        """Keep an update; `serving` is the digest of one that must stay."""
        new = Kept(digest=states.digest(state), run=run, round=number, samples=samples)
        others = [kept for kept in self.all() if kept.digest != new.digest]
        states.save(state, self._path(new.digest))
        stays = [new, *others[: _NEWEST - 1]]
        stays += [kept for kept in others[_NEWEST - 1 :] if kept.digest == serving]
        self._write(Index(updates=tuple(stays)))
        self._sweep({kept.digest for kept in stays})
        return new

    def all(self) -> tuple[Kept, ...]:
        """Return what there is, the newest first."""
        path = self.folder / "index.json"
        if not path.exists():
            return ()
        try:
            return Index.model_validate_json(canonical(parse(read(path, _LIMIT), _LIMIT))).updates
        except (SecedeError, ValidationError) as error:
            told = faults(error) if isinstance(error, ValidationError) else error
            raise RecordError(f"{path}: damaged ({told}); restore it from a backup") from error

    def get(self, digest: str) -> dict[str, Tensor] | None:
        """Return the update with this digest; None if it is not there."""
        if digest not in {kept.digest for kept in self.all()}:
            return None
        state, _ = states.load(self._path(digest))
        if states.digest(state) != digest:
            raise StateError(f"{self._path(digest)}: its values are not those that were written")
        return state

    def forget(self) -> None:
        """Remove all of it."""
        self._write(Index())
        self._sweep(set())

    def _write(self, index: Index) -> None:
        files.write_bytes(
            self.folder / "index.json", canonical(index.model_dump(mode="json")) + b"\n"
        )

    def _sweep(self, stays: set[str]) -> None:
        """Remove what the index does not name, and what a kill left half written."""
        try:
            for path in (*self.folder.glob("*.safetensors"), *self.folder.glob(".*.part")):
                if path.stem not in stays:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete in {self.folder}: {error.strerror}") from error

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"
