"""A run's folder on disk: what was asked, how every round went, and where to go on after a kill.

    <runs>/<name>-<digest>/config.json
                           seed-0/environment.json, curves.jsonl, result.json, states/, evidence/

A checkpoint is the truth about how far an arm is; rows of the curve beyond it are dropped and
computed again, with the same outcome. `result.json` is written last and marks a finished seed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from secede import files
from secede import state as states
from secede.errors import RecordError, StateError, StorageError
from secede.federation.cost import Cost
from secede.state import State

CONFIG, CURVES, RESULT, ENVIRONMENT = (
    "config.json",
    "curves.jsonl",
    "result.json",
    "environment.json",
)
_MEMORY = "memory::"  # begins the names of what a method remembers, in a checkpoint's file
INCIDENTAL = ("executor_note", "lanes")  # of the environment: they change no result


@dataclass(frozen=True)
class Checkpoint:
    """An arm's state after some round, what it had cost by then, and what its method remembers."""

    round: int
    state: State
    cost: Cost
    memory: State = field(default_factory=dict)


def run_folder(runs: Path, name: str, digest: str) -> Path:
    """Return where the run of this config lives."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    return runs / f"{slug}-{digest[:8]}"


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write `value` as readable JSON, whole or not at all."""
    files.write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a damaged file is named."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: damaged record ({error}); delete its folder to redo") from error
    if not isinstance(value, dict):
        raise RecordError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


class SeedFolder:
    """The records of one seed of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def finished(self) -> bool:
        """Whether the seed has its result."""
        return (self.path / RESULT).exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; a second process is told who has it."""
        lock = self.path / ".lock"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot write to {self.path}: {error.strerror}") from error
        with ExitStack() as stack:
            try:
                stack.enter_context(files.lock(lock, timeout=0))
            except files.LockedError:
                owner = lock.read_text().strip() or "unknown"
                raise RecordError(f"{self.path} is being written by process {owner}") from None
            lock.write_text(str(os.getpid()))
            files.remove_parts(self.path)
            yield

    def checkpoint(self, arm: str) -> Checkpoint | None:
        """Return how far `arm` got, or None if it has not begun."""
        path = self._state_path(arm)
        if not path.exists():
            return None
        tensors, metadata = self.load_state(arm)
        state = {name: v for name, v in tensors.items() if not name.startswith(_MEMORY)}
        memory = {n.removeprefix(_MEMORY): v for n, v in tensors.items() if n not in state}
        try:
            cost = Cost(**json.loads(metadata["cost"]))
            return Checkpoint(int(metadata["round"]), state, cost, memory)
        except (KeyError, ValueError, TypeError) as error:
            raise RecordError(f"{path}: damaged checkpoint ({error}); delete it to redo") from error

    def save_checkpoint(self, arm: str, checkpoint: Checkpoint) -> None:
        """Replace `arm`'s checkpoint; the state before it is gone."""
        metadata = {
            "round": str(checkpoint.round),
            "cost": json.dumps(checkpoint.cost.as_dict()),
        }
        memory = {f"{_MEMORY}{name}": value for name, value in checkpoint.memory.items()}
        self.save_state(arm, {**checkpoint.state, **memory}, metadata)

    def save_state(self, name: str, state: State, metadata: Mapping[str, str]) -> None:
        """Write a named state with its metadata."""
        states.save(state, self._state_path(name), {**metadata, "digest": states.digest(state)})

    def load_state(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Read a named state and its metadata."""
        try:
            state, metadata = states.load(self._state_path(name))
        except StateError as error:
            raise RecordError(f"{error}; delete {self.path} to redo this seed") from error
        if metadata.get("digest") != states.digest(state):
            raise RecordError(
                f"{self._state_path(name)}: its values are not those that were written; "
                f"delete {self.path} to redo this seed"
            )
        return state, metadata

    def drop_state(self, name: str) -> None:
        """Forget a named state."""
        self._state_path(name).unlink(missing_ok=True)

    def has_state(self, name: str) -> bool:
        """Whether a state of this name was written."""
        return self._state_path(name).exists()

    def rows(self) -> list[dict[str, Any]]:
        """Return the curve's rows; a torn last line, as a kill leaves it, is not one."""
        path = self.path / CURVES
        if not path.exists():
            return []
        rows = []
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise RecordError(f"{path}, line {number}: damaged record ({error})") from error
        return rows

    def append_row(self, row: Mapping[str, object]) -> None:
        """Add one row to the curve."""
        files.append_line(self.path / CURVES, json.dumps(row, sort_keys=True))

    def drop_rows_beyond_checkpoints(self) -> None:
        """Forget rows that no checkpoint covers, and a torn last line."""
        reached: dict[str, int] = {}
        kept: list[str] = []
        for row in self.rows():
            arm = row["arm"]
            if arm not in reached:
                checkpoint = self.checkpoint(arm)
                reached[arm] = checkpoint.round if checkpoint else -1
            if row["round"] <= reached[arm]:
                kept.append(json.dumps(row, sort_keys=True) + "\n")
        files.write_text(self.path / CURVES, "".join(kept))

    def drop_arms(self, arms: Collection[str]) -> None:
        """Forget the rows of these arms."""
        if arms:
            kept = [row for row in self.rows() if row["arm"] not in arms]
            lines = (json.dumps(row, sort_keys=True) + "\n" for row in kept)
            files.write_text(self.path / CURVES, "".join(lines))

    def begin(self, environment: Mapping[str, object]) -> None:
        """Write down where the seed is computed; one begun elsewhere is refused.

        Other versions, devices or thread counts round differently, so a seed that changed them in
        the middle would be neither one run nor the other. `INCIDENTAL` keys may change.
        """
        path = self.path / ENVIRONMENT
        before = read_json(path) if path.exists() else environment
        changed = [
            key
            for key in environment
            if key not in INCIDENTAL and before.get(key) != environment[key]
        ]
        if changed:
            told = ", ".join(
                f"{key} {before.get(key)} then, {environment[key]} now" for key in changed
            )
            raise RecordError(
                f"{self.path} was begun in another environment: {told}; go on with what it was, "
                "use another --out, or delete it to redo"
            )
        write_json(path, environment)

    def _state_path(self, name: str) -> Path:
        return self.path / "states" / f"{name}.safetensors"
