"""What a client keeps of itself on its own disk: its last updates, and nothing of anybody else's.

Each is a safetensors file named by its digest; `index.json` tells home, run, round and samples,
the newest first. Of each home, which is a federation's server, the last two stay, and the one that
the server says is in its model: rounds that led nowhere must not cost the client the update that
counts. Whoever writes holds a lock, and a kill leaves all or nothing.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError
from torch import Tensor

from secede import files
from secede import state as states
from secede.erasure.canonical import canonical, parse, read
from secede.erasure.fields import Count, Digest, Document, faults
from secede.errors import ConfigError, RecordError, SecedeError, StateError, StorageError
from secede.flower import saving
from secede.state import State

_LIMIT = 1 << 20
_NEWEST = 2  # the last one, and the one before in case the server never aggregated the last
_HOMES = 16  # of which updates stay: whoever makes up more of them fills no disk


class Kept(Document):
    """An update that the client has: what it is, and where it comes from."""

    digest: Digest
    run: str
    round: Count
    samples: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    home: str = ""  # what the server calls itself
    node: str = ""  # the id under which it was sent


class Index(Document):
    """All that the client has, the newest first."""

    version: Literal[1] = 1
    updates: tuple[Kept, ...] = ()


class Updates:
    """A folder with a client's own last updates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(
        self,
        state: State,
        *,
        run: str,
        number: int,
        samples: float,
        home: str = "",
        node: str = "",
        serving: str | None = None,
    ) -> Kept:
        """Keep an update; `serving` is the digest of the home's one that must stay."""
        with files.private(), self._locked():
            known = self.all()
            self._check_alone(known, home, run, node)
            # The index, which comes next, syncs the folder for both.
            digest = saving.save(state, self.folder, mode=0o600, sync_folder=False)
            new = Kept(digest=digest, run=run, round=number, samples=samples, home=home, node=node)
            stays = _stays(new, known, serving)
            self._write(Index(updates=stays))
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

    def forget(self, home: str | None = None) -> int:
        """Remove what was kept for a home, or all of it; return how many updates those were."""
        if not self.folder.exists():
            return 0
        with files.private(), self._locked():
            known = self.all()
            stays = tuple(kept for kept in known if home is not None and kept.home != home)
            self._write(Index(updates=stays))
            self._sweep({kept.digest for kept in stays})
        return len(known) - len(stays)

    def _check_alone(self, known: Sequence[Kept], home: str, run: str, node: str) -> None:
        """Raise if another client of the same run keeps its updates here: they would be mixed."""
        others = {kept.node for kept in known if (kept.home, kept.run) == (home, run)} - {node}
        if others:
            raise ConfigError(
                f"clients {min(others)} and {node} both keep their updates in {self.folder}: give "
                "each a folder of its own (secede-folder in its node config)"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            files.make_folder(self.folder)
            path = self.folder / ".lock"
            path.touch(mode=0o600)
            file = path.open("rb")
        except OSError as error:
            raise StorageError(f"cannot write in {self.folder}: {error.strerror}") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, index: Index) -> None:
        files.write_bytes(
            self.folder / "index.json", canonical(index.model_dump(mode="json")) + b"\n"
        )

    def _sweep(self, stays: set[str]) -> None:
        """Remove what the index does not name, and what a kill left half written."""
        try:
            for path in (*self.folder.glob("*.safetensors"), *self.folder.glob(saving.PARTS)):
                if path.stem not in stays:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete in {self.folder}: {error.strerror}") from error

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"


def _stays(new: Kept, known: Sequence[Kept], serving: str | None) -> tuple[Kept, ...]:
    """Return what stays once `new` is there, the newest first."""
    stays, homes, mine = [new], {new.home}, 1
    for kept in known:
        if kept.home != new.home:
            homes |= {kept.home} if len(homes) < _HOMES else set()
            stays += [kept] if kept.home in homes else []
        elif kept.digest != new.digest:
            stays += [kept] if mine < _NEWEST or kept.digest == serving else []
            mine += 1
    return tuple(stays)
