"""Sketches of registered models: a few sums by which one is recognised when it comes back.

A retired model's file is destroyed, but a leaver may have kept a copy and return it as unlearnt.
What stays is its digest, for exact copies, and a sketch for near ones: each value is added, with a
sign, to one of at most 64 sums, drawn from a secret seed (Charikar et al. 2002, the count sketch).
Distances between sketches are those between models up to some ten per cent, more for tiny ones; a
sixteenth as many sums as values at most, so that no model can be computed from them.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from secede import files
from secede import state as states
from secede.errors import RecordError, StorageError
from secede.federation.engine import OwnState, Update
from secede.state import State

SUMS = 64
VALUES_PER_SUM = 16
_SEED_BYTES = 32


class Fingerprints:
    """A folder of sketches, one file for each model, and the seed that they were made with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, digest: str) -> bool:
        """Return whether a model's sketch is kept."""
        return self._path(digest).exists()

    def keep(self, digest: str, state: State, movable: Collection[str]) -> None:
        """Keep the sketch of a model's trainable values."""
        content = json.dumps(self.of(state, movable).tolist()).encode()
        files.write_bytes(self._path(digest), content)

    def note(self, digest: str) -> None:
        """Keep a digest alone, of what was never here."""
        if not self.has(digest):
            files.write_bytes(self._path(digest), b"[]")

    def distance(self, digest: str, state: State, movable: Collection[str]) -> float | None:
        """Return how far `state` is from a model, by its sketch; None if there is none."""
        if not self.has(digest):
            return None
        try:
            kept = torch.tensor(json.loads(self._path(digest).read_bytes()), dtype=torch.float64)
        except (OSError, ValueError, TypeError) as error:
            raise RecordError(f"{self._path(digest)}: damaged; restore it from a backup") from error
        found = self.of(state, movable)
        return None if kept.shape != found.shape else float((found - kept).norm())

    def of(self, state: State, movable: Collection[str]) -> Tensor:
        """Return the sums for a state's trainable values."""
        names = sorted(name for name in movable if state[name].is_floating_point())
        values = sum(state[name].numel() for name in names)
        sums = torch.zeros(min(SUMS, max(1, values // VALUES_PER_SUM)), dtype=torch.float64)
        for name in names:
            flat = state[name].detach().cpu().double().flatten()
            secret = hashlib.sha256(self._seed + name.encode()).digest()
            draw = torch.Generator().manual_seed(int.from_bytes(secret[:7]))
            place = torch.randint(2 * len(sums), flat.shape, generator=draw)
            signs = 1.0 - 2.0 * (place >= len(sums))
            sums.index_add_(0, place % len(sums), flat * signs)
        if not math.isfinite(float(sums.abs().sum())):
            raise RecordError("a model whose values have no finite sums cannot be sketched")
        return sums

    @cached_property
    def _seed(self) -> bytes:
        path = self._folder / "seed"
        if not path.exists():
            files.create(path, secrets.token_bytes(_SEED_BYTES), 0o600)
        try:
            found = path.read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        if len(found) != _SEED_BYTES:
            raise RecordError(f"{path}: damaged; restore it from a backup")
        return found

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.json"


Measure = Callable[[State], float | None]
NEAR = 0.1  # of the way from an old update to where the round began, and to the others' updates
FEWEST = 8  # sums of a sketch: fewer may be near each other by chance
NOTED = 64  # digests of a client's older updates that stay


class ReplayDetector:
    """The old updates that a home knows again, and those of the client that leaves now.

    `last` is its last update, where the server has it, `seen` are the digests of those that it once
    had, the oldest first. `movable` are the entries that training moves.
    """

    def __init__(
        self, home: Path, movable: Collection[str], last: OwnState | None, seen: Sequence[str]
    ) -> None:
        self._folder, self._movable = home / "sketches" / "updates", movable
        self._sketches, self._last, self._seen = Fingerprints(self._folder), last, seen

    def keep(self) -> None:
        """Remember the updates of the client that leaves, before they are destroyed."""
        if self._last is not None:
            names = set(self._movable) & self._last.state.keys()
            self._sketches.keep(states.digest(self._last.state), self._last.state, names)
        for digest in self._seen[-NOTED:]:
            self._sketches.note(digest)

    def old(self, updates: Mapping[int, Update], start: State) -> set[int]:
        """Return whose updates, sent in a round that began at `start`, are an erased client's."""
        known = {*self._known, *self._seen}
        if self._last is not None:
            known.add(states.digest(self._last.state))
        found = {client for client, update in updates.items() if update.digest in known}
        sent = {client: update.state for client, update in updates.items()}
        names = set(self._movable) & start.keys()
        try:
            for measure in self._measures(start, names):
                found |= _near(sent, start, measure)
        except RecordError as error:  # the server's own file, and no client's fault
            raise StorageError(str(error)) from error
        return found

    def _measures(self, start: State, names: set[str]) -> Iterator[Measure]:
        """Yield ways to tell how far a state is from an old update, one for each."""
        if self._last is not None:
            last = {name: self._last.state[name] for name in names}
            yield lambda state: states.distance({name: state[name] for name in names}, last)
        if sum(start[name].numel() for name in names) >= FEWEST * VALUES_PER_SUM:
            for digest in self._known:
                yield partial(self._sketches.distance, digest, movable=names)

    @property
    def _known(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.json"))


def _near(sent: Mapping[int, State], start: State, measure: Measure) -> set[int]:
    """Return who is at an old update, and far nearer to it than the start and the others are."""
    there = measure(start)
    away = {client: measure(state) for client, state in sent.items()}
    found = set[int]()
    for client, here in away.items():
        others = [far for other, far in away.items() if other != client and far is not None]
        if here is None or there is None or not others:
            continue
        if here < NEAR * min(there, median(others)):
            found.add(client)
    return found
