"""The last updates that a client keeps on its own disk.

Each is a safetensors file; `index.json` has home, run, round and samples, the newest first. Of each
home, which is a federation's server, the last two updates are kept, and the one that the server
says is in its model, or two more while none is known to be that one. A round may take a checksum
instead of a digest: the next round brings the digest that the server computed. `get` checks the
digest, `newest` the checksum or digest. Writers hold a lock, and a kill leaves the old updates or
the new ones.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from secede import files
from secede import state as states
from secede.erasure import Count, Digest, Document, load_document, to_canonical
from secede.errors import ConfigError, RecordError, StateError, StorageError
from secede.flower.storage import state_writer
from secede.state import State

_INDEX = "index.json"
_MAX_INDEX_BYTES = 16 << 20
_NEWEST = 2  # the last one, and the one before in case the server never aggregated the last
_UNMATCHED = 4  # while none of them is known to be the one that the server says is in its model
_HOMES = 16  # of which updates are kept: who makes up homes neither fills the disk nor evicts any


class KeptUpdate(Document):
    """An update's entry in the index."""

    digest: Digest | None = None  # the client's own or, if `file` is set, the server's
    file: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""  # "": named by the digest
    checksum: Annotated[int, Field(ge=0, lt=2**32)] | None = None  # set together with `file`
    salt: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""  # "": the digest is unsalted
    serving: Digest | None = None  # the update in the server's model at that time: another one
    run: str
    round: Count
    samples: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    home: str = ""  # identity of the server's home
    node: str = ""  # the node id under which it was sent
    client: str = ""  # its name, as the home's first round told it
    moved: dict[str, float] = Field(default_factory=dict)  # by array: how far a round moved it

    @model_validator(mode="after")
    def _has_file(self) -> Self:
        if self.digest is None and not self.file:
            raise ValueError("an update with neither digest nor file")
        if bool(self.file) != (self.checksum is not None):
            raise ValueError("an update with a file but no checksum, or the other way round")
        return self

    @property
    def stem(self) -> str:
        """The file's name without its suffix."""
        return self.file or str(self.digest)


class Index(Document):
    """All updates that are kept, the newest first."""

    version: Literal[1] = 1
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
        client: str = "",
        start: State | None = None,
    ) -> KeptUpdate:
        """Keep an update; `serving` is the digest of the home's update that must not be deleted.

        `start` is the model that it was trained from.

        With `hashed` its digest is computed now, else the home's next round brings it. The digest
        of a `hidden` update is salted, so that it confirms no guess at the values.
        """
        salt = secrets.token_hex(32) if hidden else ""
        digest = _digest(state, salt) if hashed else None
        file = "" if hashed else secrets.token_hex(16)
        with files.private(), self._locked():
            entries = self._with_served_digest(self.all(), home, serving)
            self._check_alone(entries, home, run, node)
            entries = self._with_room(entries, home)
            # Both files are written before either is synced; the index syncs the folder for both.
            with (
                files.replace(self.folder / _INDEX) as index,
                files.replace(self._path(file or str(digest)), sync_folder=False) as temporary,
            ):
                checksum = None
                if hashed:
                    state_writer.write(state, temporary)
                else:
                    checksum = state_writer.write_with_checksum(state, temporary)
                new = KeptUpdate(
                    digest=digest,
                    file=file,
                    checksum=checksum,
                    salt=salt,
                    serving=serving,
                    run=run,
                    round=number,
                    samples=samples,
                    home=home,
                    node=node,
                    client=_client_of(entries, home) or client,
                    moved={} if start is None else _moved(state, start, self._last(entries, home)),
                )
                kept = _without_old(new, entries, serving)
                index.write_bytes(_to_bytes(kept))
            self._sweep(kept)
        return new

    def all(self) -> tuple[KeptUpdate, ...]:
        """Return all entries, the newest first."""
        path = self.folder / _INDEX
        if not path.exists():
            return ()
        return load_document(Index, path, _MAX_INDEX_BYTES).updates

    def get(self, digest: str, home: str | None = None) -> dict[str, Tensor] | None:
        """Return the update with this digest, of one home or of any; None if there is none.

        RecordError if it is damaged, or if an update is damaged that may have been it.
        """
        damaged: RecordError | None = None
        own = (entry for entry in self.all() if home is None or entry.home == home)
        for entry in sorted(own, key=lambda entry: entry.digest != digest):
            if entry.digest != digest and not entry.file:
                continue  # the client itself computed another digest
            try:
                state = self._load(entry)
                if _digest(state, entry.salt) == digest:
                    return state
                self._check(entry, state)  # an intact update with another digest is another update
            except RecordError as error:
                damaged = damaged or (error if entry.digest in (digest, None) else None)
        if damaged is not None:
            raise damaged
        return None

    def newest(self, home: str) -> dict[str, Tensor] | None:
        """Return the last intact update of a home; None if there is no update.

        RecordError if all of them are damaged.
        """
        damaged: RecordError | None = None
        for entry in self.all():
            if entry.home == home:
                try:
                    return self._intact(entry)
                except RecordError as error:
                    damaged = damaged or error
        if damaged is not None:
            raise damaged
        return None

    def known(self, home: str) -> Iterator[tuple[State, Mapping[str, float]]]:
        """Return a home's intact updates, and how far training moved each of their arrays."""
        for entry in self.all():
            if entry.home == home:
                with suppress(RecordError):
                    yield self._intact(entry), entry.moved

    def client_of(self, home: str) -> str:
        """Return this client's name in a home, "" if none was told."""
        return _client_of(self.all(), home)

    def forget(self, home: str) -> int:
        """Delete a home's updates and return how many there were."""
        if not self.folder.exists():
            return 0
        with files.private(), self._locked():
            entries = self.all()
            kept = tuple(entry for entry in entries if entry.home != home)
            files.write_bytes(self.folder / _INDEX, _to_bytes(kept))
            self._sweep(kept)
        return len(entries) - len(kept)

    def _check_alone(self, entries: Sequence[KeptUpdate], home: str, run: str, node: str) -> None:
        """Raise if another client of the same run keeps its updates in this folder."""
        others = {e.node for e in entries if (e.home, e.run) == (home, run)} - {node}
        if others:
            raise ConfigError(
                f"clients {min(others)} and {node} both keep their updates in {self.folder}: give "
                "each a folder of its own (secede-folder in its node config)"
            )

    def _with_room(self, entries: Sequence[KeptUpdate], home: str) -> Sequence[KeptUpdate]:
        """Return the entries without the newest home of a single round, if there are too many."""
        counts = Counter(entry.home for entry in entries)
        if home in counts or len(counts) < _HOMES:
            return entries
        single = [entry.home for entry in entries if counts[entry.home] == 1]
        if not single:
            raise ConfigError(
                f"{self.folder} holds updates of {_HOMES} federations already: give this one a "
                "folder of its own (secede-folder in the node config)"
            )
        return [entry for entry in entries if entry.home != single[0]]

    def _last(self, entries: Sequence[KeptUpdate], home: str) -> State:
        """Return a home's last update if it can be read, else nothing."""
        with suppress(RecordError, StopIteration):
            return self._load(next(entry for entry in entries if entry.home == home))
        return {}

    def _load(self, entry: KeptUpdate) -> dict[str, Tensor]:
        try:
            return states.load(self._path(entry.stem))[0]
        except StateError as error:
            raise RecordError(str(error)) from error

    def _intact(self, entry: KeptUpdate) -> dict[str, Tensor]:
        state = self._load(entry)
        self._check(entry, state)
        return state

    def _check(self, entry: KeptUpdate, state: State) -> None:
        """Raise if these are not the values that were written."""
        if entry.checksum is not None:
            same = state_writer.checksum(state) == entry.checksum
        else:
            same = _digest(state, entry.salt) == entry.digest
        if not same:
            raise RecordError(
                f"{self._path(entry.stem)}: its values are not those that were written"
            )

    def _with_served_digest(
        self, entries: Sequence[KeptUpdate], home: str, serving: str | None
    ) -> Sequence[KeptUpdate]:
        """Return the entries, with the server's digest for the update that has none yet.

        It belongs to the last update if no other can have it; else all candidates are hashed.
        """
        own = [entry for entry in entries if entry.home == home]
        unhashed = [entry for entry in own if entry.digest is None]
        if serving is None or serving in {entry.digest for entry in own}:
            return entries
        if unhashed == own[:1] and all(entry.serving != serving for entry in unhashed):
            digests: dict[str, str | None] = {entry.file: serving for entry in unhashed}
        else:
            digests = {entry.file: self._digest(entry) for entry in unhashed}
        return [
            KeptUpdate.model_validate({**entry.model_dump(), "digest": digests[entry.file]})
            if entry in unhashed
            else entry
            for entry in entries
        ]

    def _digest(self, entry: KeptUpdate) -> str | None:
        """Return an update's digest, None if it is damaged."""
        try:
            return states.digest(self._intact(entry))
        except RecordError:
            return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            files.make_folder(self.folder)
        except OSError as error:
            raise StorageError(f"cannot write in {self.folder}: {error.strerror}") from error
        with files.lock(self.folder / ".lock"):
            yield

    def _sweep(self, kept: Sequence[KeptUpdate]) -> None:
        """Delete the files that the index does not name, and those that a kill left incomplete."""
        names = {f"{entry.stem}.safetensors" for entry in kept}
        try:
            for name in os.listdir(self.folder):
                unnamed = name.endswith(".safetensors") and name not in names
                if unnamed or fnmatch(name, files.PARTS):
                    os.unlink(self.folder / name)
        except OSError as error:
            raise StorageError(f"cannot delete in {self.folder}: {error.strerror}") from error

    def _path(self, stem: str) -> Path:
        return self.folder / f"{stem}.safetensors"


def _digest(state: State, salt: str) -> str:
    """Return an update's digest, salted unless `salt` is empty."""
    unsalted = states.digest(state)
    return hashlib.sha256(f"{salt}:{unsalted}".encode()).hexdigest() if salt else unsalted


def _to_bytes(updates: Sequence[KeptUpdate]) -> bytes:
    return to_canonical(Index(updates=tuple(updates)).model_dump(mode="json")) + b"\n"


def _client_of(entries: Sequence[KeptUpdate], home: str) -> str:
    return next((e.client for e in reversed(entries) if e.home == home and e.client), "")


def _moved(state: State, start: State, before: State) -> dict[str, float]:
    """Return how far each array moves in a round: from the start, or the mean from the update.

    What the others move it by is seen in where the next round starts.
    """
    moved = dict[str, float]()
    for name, value in start.items():
        own = (other for other in (state.get(name), before.get(name)) if other is not None)
        norms = [_distance(value, other) for other in own if other.shape == value.shape]
        moved[name] = max((norm for norm in norms if math.isfinite(norm)), default=0.0)
    return moved


def _distance(one: Tensor, other: Tensor) -> float:
    return float(torch.linalg.vector_norm((one - other).float(), dtype=torch.float64))


def _without_old(
    new: KeptUpdate, entries: Sequence[KeptUpdate], serving: str | None
) -> tuple[KeptUpdate, ...]:
    """Return the entries to keep besides `new`, the newest first."""
    kept, own = [new], 1
    digests = {entry.digest for entry in (new, *entries) if entry.home == new.home} - {None}
    for entry in entries:
        if entry.home != new.home:
            kept.append(entry)
        elif entry.digest is None or entry.digest != new.digest:
            # Without a digest of the server, an update that has none may be the one in its model.
            matched = serving in digests or (serving is None and entry.digest is not None)
            serves = serving is not None and entry.digest == serving
            kept += [entry] if serves or own < (_NEWEST if matched else _UNMATCHED) else []
            own += 1
    return tuple(kept)
