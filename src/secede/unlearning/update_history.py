"""The history of a training at the server, for methods that need it: safetensors, bounded.

It holds two things. For round 1 and every `interval` rounds after it, a file with the global model
before the round and each client's update; the first of these models is the untrained initial one.
For each client, the sum of its weighted updates so far, and by round how far the mean would have
lain from itself without it (its gap): in memory, and on disk at checkpoints. Models and updates are
as private as the clients' updates; a gap is one number. Most methods do without them.
"""

from __future__ import annotations

import json
import math
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

PRIVACY = "the server stores every client's single updates until the history is deleted"
_BEFORE, _WEIGHTS, _GAPS = "before", "weights", "gaps"


@dataclass(frozen=True)
class RecordedRound:
    """One recorded round: the state before it, and each client's update and share in the mean."""

    before: State
    updates: Mapping[int, State]
    weights: Mapping[int, float]


@dataclass(frozen=True)
class UpdateSums:
    """By client, the sum of its weighted updates of all rounds up to `round`; by round, its gaps.

    A client's gap is the distance of the round's mean from the mean without it, p / (1 − p) times
    its own distance from the mean; who took no part has none.
    """

    round: int = 0
    by_client: Mapping[int, State] = field(default_factory=dict)
    gaps: tuple[Mapping[int, float], ...] = ()

    def with_round(self, before: State, updates: Sequence[Update]) -> UpdateSums:
        """Return the sums after one more round."""
        weights = _weights(updates)
        sums = dict(self.by_client)
        changes = {u.client: states.difference(u.state, before) for u in updates}
        for update in updates:
            change = changes[update.client]
            previous = sums.get(update.client) or {
                n: torch.zeros_like(v) for n, v in change.items()
            }
            previous = {name: value.to(change[name].device) for name, value in previous.items()}
            sums[update.client] = states.shifted(previous, change, weights[update.client])
        return UpdateSums(self.round + 1, sums, (*self.gaps, _gaps(changes, weights)))


def _run_now(job: Callable[[], None]) -> None:
    job()


class UpdateHistory:
    """A folder of recorded rounds, and the sums after the last one.

    A training that must survive a kill calls `save_sums` before each checkpoint and
    `delete_other_sums` after it. `submit` runs the job that writes a round; by default at once.
    """

    def __init__(self, folder: Path, *, interval: int = 2, limit_bytes: int = 8 * 10**9) -> None:
        if interval < 1:
            raise ConfigError(f"the history's interval is {interval}, expected 1 or more")
        self._folder, self.interval, self._limit = folder, interval, limit_bytes
        self.sums = UpdateSums()
        self.submit: Callable[[Callable[[], None]], None] = _run_now

    def check_fits(self, *, state_bytes: int, clients: int, rounds: int) -> None:
        """Raise if `rounds` rounds of `clients` clients exceed the limit."""
        round_bytes = -(-rounds // self.interval) * (clients + 1) * state_bytes
        needed = round_bytes + 2 * clients * state_bytes
        if needed > self._limit:
            raise ConfigError(
                f"the history would take {needed / 1e9:.2g} GB, more than its limit of "
                f"{self._limit / 1e9:.2g} GB: raise situation.history_interval or "
                "situation.history_limit_gb"
            )

    def record(self, number: int, before: State, updates: Sequence[Update]) -> None:
        """Record round `number`, counted from 1: the clients' sums, and its updates if due."""
        self.sums = self._sums_before(number).with_round(before, updates)
        if (number - 1) % self.interval == 0:
            self.submit(partial(self._write_round, number, before, tuple(updates)))

    def save_sums(self, sums: UpdateSums) -> None:
        """Write the sums of one round to disk; training can resume from there."""
        by_owner = {str(client): state for client, state in sums.by_client.items()}
        metadata = {_GAPS: json.dumps(sums.gaps)}
        states.save(_join(by_owner), self._sums_path(sums.round), metadata)

    def delete_other_sums(self, number: int) -> None:
        """Delete the saved sums of all rounds but `number`, which a checkpoint covers."""
        for path in self._sums_paths():
            if _round_number(path) != number:
                path.unlink(missing_ok=True)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The recorded rounds in order; raise if one is missing."""
        numbers = sorted(_round_number(path) for path in self._folder.glob("updates-*.safetensors"))
        if numbers != [1 + self.interval * n for n in range(len(numbers))]:
            raise RecordError(
                f"the history in {self._folder} holds rounds {', '.join(map(str, numbers))}, "
                f"expected round 1 and every {self.interval} after it: it has another interval or "
                "lacks files; train again"
            )
        return tuple(numbers)

    def round(self, number: int) -> RecordedRound:
        """Return a recorded round."""
        path = self._updates_path(number)
        tensors, metadata = self._load(path, f"round {number}")
        parts = _split(tensors)
        try:
            before = parts.pop(_BEFORE)
            shares = json.loads(metadata[_WEIGHTS])
            weights = {int(owner): float(shares[owner]) for owner in parts}
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(
                f"{path} holds no round of a history ({error}); train again"
            ) from error
        return RecordedRound(before, {int(owner): part for owner, part in parts.items()}, weights)

    def update_sum(self, client: int) -> State:
        """Return the sum of the client's weighted updates over all rounds."""
        self._load_sums()
        update_sum = self.sums.by_client.get(client)
        if update_sum is None:
            raise RecordError(f"the history in {self._folder} holds no update of client {client}")
        return update_sum

    def gaps(self, client: int) -> tuple[float | None, ...]:
        """Return the client's gap in each round of the training; None where it took no part."""
        self._load_sums()
        if not self.sums.round or len(self.sums.gaps) != self.sums.round:
            raise RecordError(
                f"the history in {self._folder} does not say how far each client moved the mean in "
                "each round: an older version recorded it, or nothing was recorded; train again"
            )
        return tuple(gaps.get(client) for gaps in self.sums.gaps)

    def before(self, last: int) -> tuple[int, State]:
        """Return the latest recorded round up to round `last`, and the global model before it."""
        numbers = [number for number in self.rounds if number <= last]
        if not numbers:
            raise RecordError(
                f"the history in {self._folder} holds no global model: train with "
                "situation.history first"
            )
        return numbers[-1], self.round(numbers[-1]).before

    @property
    def size_bytes(self) -> int:
        """The size of the files on disk."""
        return sum(path.stat().st_size for path in self._folder.glob("*.safetensors"))

    def delete(self) -> None:
        """Delete the history, and partial files that a killed training left."""
        self.sums = UpdateSums()
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

    def _load_sums(self) -> None:
        if not self.sums.round:
            last = max(map(_round_number, self._sums_paths()), default=0)
            self.sums = self._saved_sums(last) if last else self.sums

    def _sums_before(self, number: int) -> UpdateSums:
        """Return the sums before round `number`, from the disk if the training was killed."""
        if number == 1:
            self.delete_other_sums(0)  # from a training that was killed before its first checkpoint
            return UpdateSums()
        if self.sums.round == number - 1:
            return self.sums
        sums = self._saved_sums(number - 1)
        self.delete_other_sums(number - 1)  # the rounds of the others will be trained again
        return sums

    def _saved_sums(self, number: int) -> UpdateSums:
        path = self._sums_path(number)
        tensors, metadata = self._load(path, f"the sums after round {number}")
        try:
            sums = {int(owner): part for owner, part in _split(tensors).items()}
            rows = json.loads(metadata.get(_GAPS, "[]"))
            gaps = tuple({int(owner): float(gap) for owner, gap in row.items()} for row in rows)
            return UpdateSums(number, sums, gaps)
        except (AttributeError, TypeError, ValueError) as error:
            raise RecordError(
                f"{path} holds no sums of a history ({error}); train again"
            ) from error

    def _write_round(self, number: int, before: State, updates: Sequence[Update]) -> None:
        changes = {str(u.client): states.difference(u.state, before) for u in updates}
        # One entry: a file's entries have no order, and the same round must give the same bytes.
        metadata = {_WEIGHTS: json.dumps(_weights(updates))}
        states.save(_join({_BEFORE: before, **changes}), self._updates_path(number), metadata)

    def _sums_paths(self) -> list[Path]:
        return list(self._folder.glob("sums-*.safetensors"))

    def _load(self, path: Path, content: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        if not path.exists():
            raise RecordError(
                f"the history in {self._folder} lacks {content}: it was not recorded or was "
                "deleted; train again from the first round"
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


def _gaps(changes: Mapping[int, State], weights: Mapping[int, float]) -> dict[int, float]:
    """Return how far the mean is from the mean without each client; infinite for one alone."""
    shares = [weights[client] for client in changes]
    mean = states.mean(list(changes.values()), shares)
    return {
        client: math.inf
        if len(changes) == 1
        else weights[client] / (1 - weights[client]) * states.distance(mean, change)
        for client, change in changes.items()
    }


def _join(parts: Mapping[str, State]) -> State:
    """Return the states of several owners as one state."""
    return {f"{o}/{name}": value for o, part in parts.items() for name, value in part.items()}


def _split(tensors: State) -> dict[str, State]:
    """Undo `_join`."""
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        owner, _, name = key.partition("/")
        parts.setdefault(owner, {})[name] = value
    return dict(parts)


def _round_number(path: Path) -> int:
    match = re.fullmatch(r"\w+-(\d+)\.safetensors", path.name)
    if match is None:
        raise RecordError(f"{path} is no file of a history, expected <kind>-<round>.safetensors")
    return int(match[1])
