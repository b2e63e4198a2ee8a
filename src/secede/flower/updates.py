"""What a client keeps of itself on its own disk: its last updates, and nothing of anybody else's.

Each is a safetensors file; `index.json` tells home, run, round and samples, the newest first. Of
each home, which is a federation's server, the last two stay, and the one that the server says is in
its model: rounds that led nowhere must not cost the client the update that counts. A round need not
hash what it keeps: the next one tells the digest that the server found, and nothing is given out
that does not have the digest asked for. Whoever writes holds a lock, and a kill leaves all or
nothing.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
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

_INDEX = "index.json"
_LIMIT = 1 << 20
_NEWEST = 2  # the last one, and the one before in case the server never aggregated the last
_HOMES = 16  # of which updates stay: whoever makes up more of them fills no disk


class Kept(Document):
    """An update that the client has: what it is, and where it comes from."""

    digest: Digest | None = None  # as the client or, while `file` is there, the server found it
    file: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""  # "": called by its digest
    run: str
    round: Count
    samples: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    home: str = ""  # what the server calls itself
    node: str = ""  # the id under which it was sent

    @property
    def stem(self) -> str:
        """What its file is called."""
        return self.file or str(self.digest)


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
        hashed: bool = True,
    ) -> Kept:
        """Keep an update; `serving` is the digest of the home's one that must stay.

        It has a digest at once if it is `hashed`, else when the home's next round tells it.
        """
        name = {"digest": states.digest(state)} if hashed else {"file": secrets.token_hex(16)}
        new = Kept(**name, run=run, round=number, samples=samples, home=home, node=node)
        with files.private(), self._locked():
            known = self.all()
            self._check_alone(known, home, run, node)
            stays = _stays(new, _called(known, home, serving), serving)
            # Both are written before the disk is waited for; the index syncs the folder for both.
            with files.replacing(self.folder / _INDEX) as index:
                index.write_bytes(_bytes(stays))
                with files.replacing(self._path(new), sync_folder=False) as temporary:
                    saving.write(state, temporary)
            self._sweep(stays)
        return new

    def all(self) -> tuple[Kept, ...]:
        """Return what there is, the newest first."""
        path = self.folder / _INDEX
        if not path.exists():
            return ()
        try:
            return Index.model_validate_json(canonical(parse(read(path, _LIMIT), _LIMIT))).updates
        except (SecedeError, ValidationError) as error:
            told = faults(error) if isinstance(error, ValidationError) else error
            raise RecordError(f"{path}: damaged ({told}); restore it from a backup") from error

    def get(self, digest: str) -> dict[str, Tensor] | None:
        """Return the update with this digest; None if it is not there."""
        damaged: StateError | None = None
        for kept in sorted(self.all(), key=lambda each: each.digest != digest):
            if kept.digest != digest and not kept.file:
                continue  # the client found another digest itself
            try:
                state, _ = states.load(self._path(kept))
                if states.digest(state) == digest:
                    return state
                error = StateError(
                    f"{self._path(kept)}: its values are not those that were written"
                )
            except StateError as found:
                error = found
            damaged = damaged or (error if kept.digest == digest else None)
        if damaged is not None:
            raise damaged
        return None

    def newest(self, home: str) -> dict[str, Tensor] | None:
        """Return the last update that was kept for a home, None if there is none."""
        for kept in self.all():
            if kept.home == home:
                if kept.digest is not None:
                    return self.get(kept.digest)
                return states.load(self._path(kept))[0]
        return None

    def forget(self, home: str | None = None) -> int:
        """Remove what was kept for a home, or all of it; return how many updates those were."""
        if not self.folder.exists():
            return 0
        with files.private(), self._locked():
            known = self.all()
            stays = tuple(kept for kept in known if home is not None and kept.home != home)
            files.write_bytes(self.folder / _INDEX, _bytes(stays))
            self._sweep(stays)
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

    def _sweep(self, stays: Sequence[Kept]) -> None:
        """Remove what the index does not name, and what a kill left half written."""
        names = {f"{kept.stem}.safetensors" for kept in stays}
        try:
            for name in os.listdir(self.folder):
                whole = name.endswith(".safetensors") and name not in names
                if whole or fnmatch(name, saving.PARTS):
                    os.unlink(self.folder / name)
        except OSError as error:
            raise StorageError(f"cannot delete in {self.folder}: {error.strerror}") from error

    def _path(self, kept: Kept) -> Path:
        return self.folder / f"{kept.stem}.safetensors"


def _bytes(updates: Sequence[Kept]) -> bytes:
    return canonical(Index(updates=tuple(updates)).model_dump(mode="json")) + b"\n"


def _called(known: Sequence[Kept], home: str, serving: str | None) -> Sequence[Kept]:
    """Return what is known; the home's newest has the digest that the server tells and none has."""
    mine = [kept for kept in known if kept.home == home]
    told = {kept.digest for kept in mine}
    if serving is None or serving in told or not mine or mine[0].digest is not None:
        return known
    named = mine[0].model_copy(update={"digest": serving})
    return [named if kept is mine[0] else kept for kept in known]


def _stays(new: Kept, known: Sequence[Kept], serving: str | None) -> tuple[Kept, ...]:
    """Return what stays once `new` is there, the newest first."""
    stays, homes, mine = [new], {new.home}, 1
    for kept in known:
        if kept.home != new.home:
            homes |= {kept.home} if len(homes) < _HOMES else set()
            stays += [kept] if kept.home in homes else []
        elif kept.digest is None or kept.digest != new.digest:
            stays += [kept] if mine < _NEWEST or kept.digest == serving else []
            mine += 1
    return tuple(stays)
