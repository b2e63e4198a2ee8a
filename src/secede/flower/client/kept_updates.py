"""What a client keeps of itself on its own disk: its last updates, and nothing of anybody else's.

Each is a safetensors file; `index.json` tells home, run, round and samples, the newest first. Of
each home, which is a federation's server, the last two stay, and the one that the server says is in
its model, or two more while none is known to be that one. A round need not hash what it keeps, but
takes a checksum: the next one tells the digest that the server found. `get` hashes, `newest` looks
at checksum or digest; neither gives out other values. Whoever writes holds a lock, and a kill
leaves all or nothing.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from secede import files
from secede import state as states
from secede.erasure import Count, Digest, Document, load_document, to_canonical
from secede.errors import ConfigError, RecordError, StateError, StorageError
from secede.flower.storage import state_writer
from secede.state import State

_INDEX = "index.json"
_LIMIT = 1 << 20
_NEWEST = 2  # the last one, and the one before in case the server never aggregated the last
_UNMATCHED = 4  # while none of them is known to be the one that the server says is in its model
_HOMES = 16  # of which updates stay: whoever makes up more of them fills no disk


class KeptUpdate(Document):
    """An update that the client has: what it is, and where it comes from."""

    digest: Digest | None = None  # as the client found it or, while `file` is there, was told
    file: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""  # "": called by its digest
    checksum: Annotated[int, Field(ge=0, lt=2**32)] | None = None  # where `file` is there
    salt: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""  # "": a digest of the values
    told: Digest | None = None  # what was in the server's model then, so hardly this one
    run: str
    round: Count
    samples: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    home: str = ""  # what the server calls itself
    node: str = ""  # the id under which it was sent

    @model_validator(mode="after")
    def _is_called(self) -> Self:
        if self.digest is None and not self.file:
            raise ValueError("an update with neither digest nor file")
        return self

    @property
    def stem(self) -> str:
        """What its file is called."""
        return self.file or str(self.digest)


class Index(Document):
    """All that the client has, the newest first."""

    version: Literal[1, 2] = 2  # 1 had no checksums
    updates: tuple[KeptUpdate, ...] = ()


class KeptUpdates:
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
        hidden: bool = False,
    ) -> KeptUpdate:
        """Keep an update; `serving` is the digest of the home's one that must stay.

        It has a digest at once if it is `hashed`, else when the home's next round tells it. That
        of a `hidden` one is salted, so that nobody can use it to find out whether a guess is right.
        """
        salt = secrets.token_hex(32) if hidden else ""
        new = KeptUpdate(
            digest=_digest(state, salt) if hashed else None,
            salt=salt,
            file="" if hashed else secrets.token_hex(16),
            told=serving,
            run=run,
            round=number,
            samples=samples,
            home=home,
            node=node,
        )
        with files.private(), self._locked():
            known = self._called(self.all(), home, serving)
            self._check_alone(known, home, run, node)
            # Both are written before the disk is waited for; the index syncs the folder for both.
            with (
                files.replace(self.folder / _INDEX) as index,
                files.replace(self._path(new), sync_folder=False) as temporary,
            ):
                if hashed:
                    state_writer.write(state, temporary)
                else:
                    new = _changed(new, checksum=state_writer.write_with_checksum(state, temporary))
                stays = _stays(new, known, serving)
                index.write_bytes(_bytes(stays))
            self._sweep(stays)
        return new

    def all(self) -> tuple[KeptUpdate, ...]:
        """Return what there is, the newest first."""
        path = self.folder / _INDEX
        if not path.exists():
            return ()
        return load_document(Index, path, _LIMIT).updates

    def get(self, digest: str, home: str | None = None) -> dict[str, Tensor] | None:
        """Return the update with this digest, of a home if one is named; None if it is not there.

        Raises if it is there and damaged, or if one is damaged that may have been it.
        """
        damaged: RecordError | None = None
        mine = (kept for kept in self.all() if home is None or kept.home == home)
        for kept in sorted(mine, key=lambda each: each.digest != digest):
            if kept.digest != digest and not kept.file:
                continue  # the client found another digest itself
            try:
                state = self._load(kept)
                if _digest(state, kept.salt) == digest:
                    return state
                self._check(kept, state)  # a sound one is another than the server took it for
            except RecordError as error:
                damaged = damaged or (error if kept.digest in (digest, None) else None)
        if damaged is not None:
            raise damaged
        return None

    def newest(self, home: str) -> dict[str, Tensor] | None:
        """Return the last sound update that was kept for a home; None if there is none.

        Raises if there are some and all are damaged.
        """
        damaged: RecordError | None = None
        for kept in self.all():
            if kept.home == home:
                try:
                    state = self._load(kept)
                    self._check(kept, state)
                    return state
                except RecordError as error:
                    damaged = damaged or error
        if damaged is not None:
            raise damaged
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

    def _check_alone(self, known: Sequence[KeptUpdate], home: str, run: str, node: str) -> None:
        """Raise if another client of the same run keeps its updates here: they would be mixed."""
        others = {kept.node for kept in known if (kept.home, kept.run) == (home, run)} - {node}
        if others:
            raise ConfigError(
                f"clients {min(others)} and {node} both keep their updates in {self.folder}: give "
                "each a folder of its own (secede-folder in its node config)"
            )

    def _load(self, kept: KeptUpdate) -> dict[str, Tensor]:
        try:
            return states.load(self._path(kept))[0]
        except StateError as error:
            raise RecordError(str(error)) from error

    def _check(self, kept: KeptUpdate, state: State) -> None:
        """Raise if these are not the values that were written."""
        if kept.checksum is not None:
            same = state_writer.checksum(state) == kept.checksum
        elif kept.digest is not None:
            same = _digest(state, kept.salt) == kept.digest
        else:  # of an index of version 1
            raise RecordError(
                f"{self._path(kept)}: nothing tells whether its values are those that were written"
            )
        if not same:
            raise RecordError(f"{self._path(kept)}: its values are not those that were written")

    def _called(
        self, known: Sequence[KeptUpdate], home: str, serving: str | None
    ) -> Sequence[KeptUpdate]:
        """Return what is known, with the digest that the server tells and none has yet.

        It is that of the last update, if no other comes into question; else all that do are hashed.
        """
        mine = [kept for kept in known if kept.home == home]
        unnamed = [kept for kept in mine if kept.digest is None]
        if serving is None or serving in {kept.digest for kept in mine}:
            return known
        if unnamed == mine[:1] and all(kept.told != serving for kept in unnamed):
            found: dict[str, str | None] = {kept.file: serving for kept in unnamed}
        else:
            found = {kept.file: self._digest(kept) for kept in unnamed}
        return [
            _changed(kept, digest=found[kept.file]) if kept in unnamed else kept for kept in known
        ]

    def _digest(self, kept: KeptUpdate) -> str | None:
        """Return an update's digest, None if it is damaged."""
        try:
            state = self._load(kept)
            if kept.checksum is not None:
                self._check(kept, state)
        except RecordError:
            return None
        return states.digest(state)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            files.make_folder(self.folder)
        except OSError as error:
            raise StorageError(f"cannot write in {self.folder}: {error.strerror}") from error
        with files.lock(self.folder / ".lock"):
            yield

    def _sweep(self, stays: Sequence[KeptUpdate]) -> None:
        """Remove what the index does not name, and what a kill left half written."""
        names = {f"{kept.stem}.safetensors" for kept in stays}
        try:
            for name in os.listdir(self.folder):
                whole = name.endswith(".safetensors") and name not in names
                if whole or fnmatch(name, files.PARTS):
                    os.unlink(self.folder / name)
        except OSError as error:
            raise StorageError(f"cannot delete in {self.folder}: {error.strerror}") from error

    def _path(self, kept: KeptUpdate) -> Path:
        return self.folder / f"{kept.stem}.safetensors"


def _digest(state: State, salt: str) -> str:
    """Return an update's digest, or one that nobody can find who does not know the salt."""
    plain = states.digest(state)
    return hashlib.sha256(f"{salt}:{plain}".encode()).hexdigest() if salt else plain


def _bytes(updates: Sequence[KeptUpdate]) -> bytes:
    return to_canonical(Index(updates=tuple(updates)).model_dump(mode="json")) + b"\n"


def _changed(kept: KeptUpdate, **values: object) -> KeptUpdate:
    """Return the entry with other values; what is not sound raises."""
    return KeptUpdate.model_validate({**kept.model_dump(), **values})


def _stays(
    new: KeptUpdate, known: Sequence[KeptUpdate], serving: str | None
) -> tuple[KeptUpdate, ...]:
    """Return what stays once `new` is there, the newest first."""
    stays, homes, mine = [new], {new.home}, 1
    digests = {kept.digest for kept in (new, *known) if kept.home == new.home} - {None}
    for kept in known:
        if kept.home != new.home:
            homes |= {kept.home} if len(homes) < _HOMES else set()
            stays += [kept] if kept.home in homes else []
        elif kept.digest is None or kept.digest != new.digest:
            # Of one that is not named, a server that tells no digest has not said that it may go.
            sure = serving in digests or (serving is None and kept.digest is not None)
            counts = serving is not None and kept.digest == serving
            stays += [kept] if counts or mine < (_NEWEST if sure else _UNMATCHED) else []
            mine += 1
    return tuple(stays)
