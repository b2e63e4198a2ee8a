"""What a server keeps while it trains, for methods that need it: on disk, safetensors, bounded.

Two things are kept. Of round 1 and every `interval` rounds after it, one file: the state before the
round and each client's update; the first of these states is the initial model, which nobody taught.
For each client, the sum of its weighted updates so far: in memory where they were trained, on disk
when a checkpoint asks for it. Both are as private as the clients' updates themselves; keeping them
is what the other methods do without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from secede import files
from secede import state as states
from secede.errors import ConfigError, RecordError, StateError, StorageError
from secede.federation.engine import Update
from secede.state import State

PRIVACY = "every client's single updates lie at the server until the history is deleted"
_BEFORE, _WEIGHTS = "before", "weights"


@dataclass(frozen=True)
class Kept:
    """One kept round: the state before it, and each client's update and share in the mean."""

    before: State
    updates: Mapping[int, State]
    weights: Mapping[int, float]


@dataclass(frozen=True)
class Sums:
    """By client, the sum of its weighted updates of all rounds up to `round`."""

    round: int = 0
    by_client: Mapping[int, State] = field(default_factory=dict)

    def and_then(self, before: State, updates: Sequence[Update]) -> Sums:
        """Return the sums after one more round; these here stay as they are."""
        weights = _weights(updates)
        sums = dict(self.by_client)
        for update in updates:
            change = states.difference(update.state, before)
            so_far = sums.get(update.client) or {n: torch.zeros_like(v) for n, v in change.items()}
            so_far = {name: value.to(change[name].device) for name, value in so_far.items()}
            sums[update.client] = states.shifted(so_far, change, weights[update.client])
        return Sums(self.round + 1, sums)


def _at_once(job: Callable[[], None]) -> None:
    job()


class UpdateHistory:
    """A folder of kept rounds, and the sums after the last one.

    Training that is to survive a kill writes the sums before each checkpoint (`write`) and forgets
    older ones after it (`settle`). `submit` is given each kept round's writing; by default it is
    done at once.
    """

    def __init__(self, folder: Path, *, interval: int = 2, limit_bytes: int = 8 * 10**9) -> None:
        if interval < 1:
            raise ConfigError(f"the history's interval is {interval}, expected 1 or more")
        self._folder, self.interval, self._limit = folder, interval, limit_bytes
        self.sums = Sums()
        self.submit: Callable[[Callable[[], None]], None] = _at_once

    def check_fits(self, *, state_bytes: int, clients: int, rounds: int) -> None:
        """Raise if `rounds` rounds of `clients` clients would not fit the limit."""
        kept = -(-rounds // self.interval) * (clients + 1) * state_bytes
        needed = kept + 2 * clients * state_bytes
        if needed > self._limit:
            raise ConfigError(
                f"the history would take {needed / 1e9:.2g} GB, more than its limit of "
                f"{self._limit / 1e9:.2g} GB: keep fewer rounds (situation.history_interval) or "
                "raise situation.history_limit_gb"
            )

    def keep(self, number: int, before: State, updates: Sequence[Update]) -> None:
        """Keep round `number`, counted from 1: its updates where due, and the clients' sums."""
        self.sums = self._sums_before(number).and_then(before, updates)
        if (number - 1) % self.interval == 0:
            self.submit(partial(self._write_round, number, before, tuple(updates)))

    def write(self, sums: Sums) -> None:
        """Write the sums as they were after some round, so that training can go on from there."""
        by_owner = {str(client): state for client, state in sums.by_client.items()}
        states.save(_joined(by_owner), self._sums_path(sums.round))

    def settle(self, number: int) -> None:
        """Forget the written sums of other rounds than `number`, which a checkpoint now covers."""
        for path in self._sums_paths():
            if _number(path) != number:
                path.unlink(missing_ok=True)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds whose single updates were kept, in order; a gap among them raises."""
        found = sorted(_number(path) for path in self._folder.glob("updates-*.safetensors"))
        if found != [1 + self.interval * n for n in range(len(found))]:
            raise RecordError(
                f"the history in {self._folder} holds rounds {', '.join(map(str, found))}, not "
                f"round 1 and every {self.interval} after it: it was kept with another interval "
                "or files are missing; train again"
            )
        return tuple(found)

    def round(self, number: int) -> Kept:
        """Return a kept round."""
        path = self._updates_path(number)
        tensors, metadata = self._load(path, f"round {number}")
        parts = _parted(tensors)
        try:
            before = parts.pop(_BEFORE)
            stamped = json.loads(metadata[_WEIGHTS])
            weights = {int(owner): float(stamped[owner]) for owner in parts}
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{path}: not a round of a history ({error}); train again") from error
        return Kept(before, {int(owner): part for owner, part in parts.items()}, weights)

    def accumulated(self, client: int) -> State:
        """Return the sum of the client's weighted updates over all rounds."""
        if not self.sums.round:
            last = max(map(_number, self._sums_paths()), default=0)
            self.sums = self._written_sums(last) if last else self.sums
        found = self.sums.by_client.get(client)
        if found is None:
            raise RecordError(f"the history in {self._folder} holds nothing of client {client}")
        return found

    @property
    def size_bytes(self) -> int:
        """How much lies on the disk."""
        return sum(path.stat().st_size for path in self._folder.glob("*.safetensors"))

    def delete(self) -> None:
        """Remove all that was kept, and what a killed training left half written."""
        self.sums = Sums()
        if not self._folder.exists():
            return
        try:
            for pattern in ("*.safetensors", ".*.safetensors.*.part"):
                for path in self._folder.glob(pattern):
                    files.delete(path)
            self._folder.rmdir()
        except OSError as error:
            raise StorageError(
                f"cannot delete the history in {self._folder}: {error.strerror}"
            ) from error

    def _sums_before(self, number: int) -> Sums:
        """Return the sums that round `number` adds to, from the disk if training was killed."""
        if number == 1:
            self.settle(0)  # of a training that was killed before its first checkpoint
            return Sums()
        if self.sums.round == number - 1:
            return self.sums
        found = self._written_sums(number - 1)
        self.settle(number - 1)  # others are of rounds that come again
        return found

    def _written_sums(self, number: int) -> Sums:
        path = self._sums_path(number)
        tensors, _ = self._load(path, f"the sums after round {number}")
        try:
            return Sums(number, {int(owner): part for owner, part in _parted(tensors).items()})
        except ValueError as error:
            raise RecordError(f"{path}: not sums of a history ({error}); train again") from error

    def _write_round(self, number: int, before: State, updates: Sequence[Update]) -> None:
        changes = {str(u.client): states.difference(u.state, before) for u in updates}
        # One entry, since a file's entries come in no order: the same round is the same bytes.
        stamp = {_WEIGHTS: json.dumps(_weights(updates))}
        states.save(_joined({_BEFORE: before, **changes}), self._updates_path(number), stamp)

    def _sums_paths(self) -> list[Path]:
        return list(self._folder.glob("sums-*.safetensors"))

    def _load(self, path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        if not path.exists():
            raise RecordError(
                f"the history in {self._folder} lacks {what}: it was not kept or was deleted; "
                "train again from the first round"
            )
        try:
            return states.load(path)
        except StateError as error:
            raise RecordError(f"the history is damaged: {error}; train again") from error

    def _updates_path(self, number: int) -> Path:
        return self._folder / f"updates-{number:05d}.safetensors"

    def _sums_path(self, number: int) -> Path:
        return self._folder / f"sums-{number:05d}.safetensors"


def _weights(updates: Sequence[Update]) -> dict[int, float]:
    """Return each client's share in the mean."""
    total = sum(update.samples for update in updates)
    return {update.client: update.samples / total for update in updates}


def _joined(parts: Mapping[str, State]) -> State:
    """Return the states of several owners as one."""
    return {f"{o}/{name}": value for o, part in parts.items() for name, value in part.items()}


def _parted(tensors: State) -> dict[str, State]:
    """Undo `_joined`."""
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        owner, _, name = key.partition("/")
        parts.setdefault(owner, {})[name] = value
    return dict(parts)


def _number(path: Path) -> int:
    found = re.fullmatch(r"\w+-(\d+)\.safetensors", path.name)
    if found is None:
        raise RecordError(f"{path}: not a file of a history")
    return int(found[1])
