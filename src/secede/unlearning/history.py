"""What a server keeps while it trains, for methods that need it: on disk, safetensors, bounded.

Two things are kept. Of round 1 and every `interval` rounds after it: the state before the round
and each client's update; the first of these states is the initial model, which nobody taught.
After every round: for each client, the sum of its weighted updates so far. Both are as private as
the clients' updates themselves; keeping them is what the other methods do without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

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


class History:
    """A folder of kept rounds; the same round kept twice is kept once."""

    def __init__(self, folder: Path, *, interval: int = 2, limit_bytes: int = 8 * 10**9) -> None:
        if interval < 1:
            raise ConfigError(f"the history's interval is {interval}, expected 1 or more")
        self._folder, self.interval, self._limit = folder, interval, limit_bytes

    def check_fits(self, *, state_bytes: int, clients: int, rounds: int) -> None:
        """Raise if `rounds` rounds of `clients` clients would not fit the limit."""
        kept = -(-rounds // self.interval) * (clients + 1) * state_bytes
        needed = kept + 2 * clients * state_bytes
        if needed > self._limit:
            raise ConfigError(
                f"the history would take {needed / 1e9:.1f} GB, more than its limit of "
                f"{self._limit / 1e9:.1f} GB: keep fewer rounds (situation.history_interval) or "
                "raise situation.history_limit_gb"
            )

    def keep(self, number: int, before: State, updates: Sequence[Update]) -> None:
        """Keep round `number`, counted from 1: its updates where due, and the clients' sums."""
        total = sum(update.samples for update in updates)
        changes = {u.client: _stored(states.difference(u.state, before)) for u in updates}
        weights = {u.client: u.samples / total for u in updates}
        sums = self._sums(number - 1) if number > 1 else {}
        if (number - 1) % self.interval == 0:
            parts = {_BEFORE: before, **{str(c): change for c, change in changes.items()}}
            # One entry, since a file's entries come in no order: the same round is the same bytes.
            stamp = {_WEIGHTS: json.dumps(weights)}
            states.save(_joined(parts), self._updates_path(number), stamp)
        for client, change in changes.items():
            so_far = sums.get(str(client)) or {n: torch.zeros_like(v) for n, v in change.items()}
            sums[str(client)] = states.shifted(so_far, change, weights[client])
        states.save(_joined(sums), self._sums_path(number))

    def settle(self, number: int) -> None:
        """Forget the sums of rounds before `number`, from which a killed training would go on."""
        for path in self._folder.glob("sums-*.safetensors"):
            if _number(path) < number:
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
        last = max((_number(path) for path in self._folder.glob("sums-*.safetensors")), default=0)
        found = self._sums(last).get(str(client)) if last else None
        if found is None:
            raise RecordError(f"the history in {self._folder} holds nothing of client {client}")
        return found

    @property
    def size_bytes(self) -> int:
        """How much lies on the disk."""
        return sum(path.stat().st_size for path in self._folder.glob("*.safetensors"))

    def delete(self) -> None:
        """Remove all that was kept, and what a killed training left half written."""
        if not self._folder.exists():
            return
        try:
            for pattern in ("*.safetensors", ".*.safetensors.*.part"):
                for path in self._folder.glob(pattern):
                    path.unlink()
            self._folder.rmdir()
        except OSError as error:
            raise StorageError(
                f"cannot delete the history in {self._folder}: {error.strerror}"
            ) from error

    def _sums(self, number: int) -> dict[str, State]:
        tensors, _ = self._load(self._sums_path(number), f"the sums after round {number}")
        return _parted(tensors)

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


def _stored(state: State) -> State:
    """Return `state` where sums are made and files written."""
    return states.to(state, torch.device("cpu"))


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
