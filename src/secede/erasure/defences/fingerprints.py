"""Fingerprints of models and updates: a few sums by which each is recognised when it comes back.

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
from typing import Literal

import torch
from torch import Tensor

from secede import files
from secede import state as states
from secede.erasure.documents import SketchBody
from secede.errors import RecordError, StorageError
from secede.federation.engine import OwnState, Update
from secede.state import State

MAX_SUMS = 64  # of a sketch
VALUES_PER_SUM = 16
_SEED_BYTES = 32
_NEAR = 0.1  # of the way from an old update to where the round began, and to the others' updates
_MIN_SUMS = 8  # of a sketch that is compared: fewer may be near each other by chance
_MAX_DIGESTS = 64  # of a client's older updates that stay

Measure = Callable[[State], float | None]
_NO_SUMS = b"[]"  # of values that were never here: no seed was used


class Fingerprints:
    """A folder with the sketch of each model, and the seed that they were drawn with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, digest: str) -> bool:
        """Return whether a model's fingerprint is there."""
        return self._path(digest).exists()

    def digests(self) -> list[str]:
        """Return the digests of all models whose fingerprint is there."""
        return sorted(path.stem for path in self._folder.glob("*.json"))

    def row(self, what: Literal["model", "update"], digest: str) -> SketchBody:
        """Return the ledger's row of a fingerprint, as its files are now."""
        path, seed = self._path(digest), self._folder / "seed"
        is_drawn = seed.exists() and path.read_bytes() != _NO_SUMS
        return SketchBody(
            what=what,
            of=digest,
            sketch=files.digest(path),
            seed=files.digest(seed) if is_drawn else None,
        )

    def save(self, digest: str, state: State, trainable: Collection[str]) -> None:
        """Write the sketch of a model's trainable values."""
        content = json.dumps(self.sketch(state, trainable).tolist()).encode()
        files.write_bytes(self._path(digest), content)

    def save_digest(self, digest: str) -> None:
        """Write a digest alone, for values that were never here."""
        if not self.has(digest):
            files.write_bytes(self._path(digest), _NO_SUMS)

    def distance(self, digest: str, state: State, trainable: Collection[str]) -> float | None:
        """Return how far `state` is from a model, by its sketch; None if there is none."""
        path = self._path(digest)
        if not path.exists():
            return None
        try:
            saved = torch.tensor(json.loads(path.read_bytes()), dtype=torch.float64)
        except (OSError, ValueError, TypeError) as error:
            raise RecordError(f"{path}: damaged; restore it from a backup") from error
        sketch = self.sketch(state, trainable)
        return None if saved.shape != sketch.shape else float((sketch - saved).norm())

    def sketch(self, state: State, trainable: Collection[str]) -> Tensor:
        """Return the sums for a state's trainable values."""
        names = sorted(name for name in trainable if state[name].is_floating_point())
        values = sum(state[name].numel() for name in names)
        count = min(MAX_SUMS, max(1, values // VALUES_PER_SUM))
        sums = torch.zeros(count, dtype=torch.float64)
        for name in names:
            flat = state[name].detach().cpu().double().flatten()
            secret = hashlib.sha256(self._seed + name.encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(secret[:7]))
            places = torch.randint(2 * count, flat.shape, generator=generator)
            signs = 1.0 - 2.0 * (places >= count)
            sums.index_add_(0, places % count, flat * signs)
        if not math.isfinite(float(sums.abs().sum())):
            raise RecordError("a model whose values have no finite sums has no fingerprint")
        return sums

    @cached_property
    def _seed(self) -> bytes:
        path = self._folder / "seed"
        if not path.exists():
            files.create(path, secrets.token_bytes(_SEED_BYTES), 0o600)
        try:
            seed = path.read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        if len(seed) != _SEED_BYTES:
            raise RecordError(f"{path}: damaged; restore it from a backup")
        return seed

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.json"


class ReplayDetector:
    """Detects updates of erased clients, and older ones of the leaver, that somebody sends again.

    The fingerprints of old updates lie in `folder`. `last` is the leaver's last update, where the
    server has it, `older` are the digests of those that it once had, the oldest first. `trainable`
    are the entries that training moves.
    """

    def __init__(
        self, folder: Path, trainable: Collection[str], last: OwnState | None, older: Sequence[str]
    ) -> None:
        self._fingerprints = Fingerprints(folder)
        self._trainable, self._last, self._older = trainable, last, older

    def save(self) -> list[SketchBody]:
        """Write the fingerprints of the leaver's updates, before these are destroyed.

        Returns the ledger's rows of them.
        """
        saved = list(self._older[-_MAX_DIGESTS:])
        if self._last is not None:
            names = set(self._trainable) & self._last.state.keys()
            saved.append(states.digest(self._last.state))
            self._fingerprints.save(saved[-1], self._last.state, names)
        for digest in saved:
            self._fingerprints.save_digest(digest)
        return [self._fingerprints.row("update", digest) for digest in dict.fromkeys(saved)]

    def replays(self, updates: Mapping[int, Update], start: State) -> set[int]:
        """Return the clients whose updates, in a round that began at `start`, are replays."""
        digests = {*self._fingerprints.digests(), *self._older}
        if self._last is not None:
            digests.add(states.digest(self._last.state))
        clients = {client for client, update in updates.items() if update.digest in digests}
        sent = {client: update.state for client, update in updates.items()}
        names = set(self._trainable) & start.keys()
        try:
            for measure in self._measures(start, names):
                clients |= _near(sent, start, measure)
        except RecordError as error:  # the server's own file, and no client's fault
            raise StorageError(str(error)) from error
        return clients

    def _measures(self, start: State, names: set[str]) -> Iterator[Measure]:
        """Yield a measure of the distance to each old update."""
        if self._last is not None:
            last = {name: self._last.state[name] for name in names}
            yield lambda state: states.distance({name: state[name] for name in names}, last)
        if sum(start[name].numel() for name in names) >= _MIN_SUMS * VALUES_PER_SUM:
            for digest in self._fingerprints.digests():
                yield partial(self._fingerprints.distance, digest, trainable=names)


def _near(sent: Mapping[int, State], start: State, measure: Measure) -> set[int]:
    """Return the clients far nearer to an old update than the round's start and the others."""
    start_distance = measure(start)
    distances = {client: measure(state) for client, state in sent.items()}
    clients = set[int]()
    for client, distance in distances.items():
        others = [d for other, d in distances.items() if other != client and d is not None]
        if distance is None or start_distance is None or not others:
            continue
        if distance < _NEAR * min(start_distance, median(others)):
            clients.add(client)
    return clients
