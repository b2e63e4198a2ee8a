"""The folder of a run: its config, the records of every round, and checkpoints to resume from.

    <runs>/<name>-<digest>/config.json
                           seed-0/environment.json, curves.jsonl, result.json, states/, evidence/

A checkpoint decides how far an arm is; rows of the curve beyond it are dropped and computed again,
with the same outcome. `result.json` is written last and marks a finished seed.
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

from secede import files, strict
from secede import state as states
from secede.errors import RecordError, StateError, StorageError
from secede.federation.engine import Cost
from secede.state import State

CONFIG, CURVES, RESULT, ENVIRONMENT = (
    "config.json",
    "curves.jsonl",
    "result.json",
    "environment.json",
)
_LIMIT_BYTES = 4 * 1024**2  # of a file that is one JSON object
_MEMORY = "memory::"  # prefix of a method's memory in a checkpoint's file
INCIDENTAL = ("executor_note", "lanes")  # keys of the environment that change no result


@dataclass(frozen=True)
class Checkpoint:
    """An arm after a round: its state, its cost so far, and its method's memory."""

    round: int
    state: State
    cost: Cost
    memory: State = field(default_factory=dict)


def run_folder(runs: Path, name: str, digest: str) -> Path:
    """Return the folder of a run."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    return runs / f"{slug}-{digest[:8]}"


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write `value` as indented JSON in one step."""
    files.write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise RecordError if the file is damaged."""
    try:
        value = strict.parse_json(files.read_limited(path, _LIMIT_BYTES).decode())
    except (OSError, ValueError) as error:
        reason = strict.json_fault(error) if isinstance(error, ValueError) else error.strerror
        raise RecordError(
            f"{path}: damaged record ({reason}); delete its folder to redo"
        ) from error
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
        """Lock the folder for this process; raise with its owner if another process has it."""
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
        """Return the checkpoint of `arm`, or None if it has not begun."""
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
        """Replace the checkpoint of `arm`."""
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
        """Delete a named state."""
        self._state_path(name).unlink(missing_ok=True)

    def has_state(self, name: str) -> bool:
        """Return whether a state of this name was written."""
        return self._state_path(name).exists()

    def rows(self) -> list[dict[str, Any]]:
        """Return the curve's rows, without a last line that a kill cut short."""
        path = self.path / CURVES
        if not path.exists():
            return []
        rows = []
        with files.open_regular(path) as file:
            lines = file.read().split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):
            try:
                rows.append(strict.parse_json(line.decode()))
            except ValueError as error:
                raise RecordError(f"{path}, line {number}: damaged record ({error})") from error
        return rows

    def append_row(self, row: Mapping[str, object]) -> None:
        """Add one row to the curve."""
        files.append_line(self.path / CURVES, json.dumps(row, sort_keys=True))

    def drop_rows_beyond_checkpoints(self) -> None:
        """Delete rows that no checkpoint covers, and a last line that a kill cut short."""
        reached: dict[str, int] = {}
        covered: list[str] = []
        for row in self.rows():
            arm = row["arm"]
            if arm not in reached:
                checkpoint = self.checkpoint(arm)
                reached[arm] = checkpoint.round if checkpoint else -1
            if row["round"] <= reached[arm]:
                covered.append(json.dumps(row, sort_keys=True) + "\n")
        files.write_text(self.path / CURVES, "".join(covered))

    def drop_arms(self, arms: Collection[str]) -> None:
        """Delete the rows of these arms."""
        if arms:
            rows = (row for row in self.rows() if row["arm"] not in arms)
            lines = (json.dumps(row, sort_keys=True) + "\n" for row in rows)
            files.write_text(self.path / CURVES, "".join(lines))

    def write_environment(self, environment: Mapping[str, object]) -> None:
        """Record the environment; raise if the seed was begun in another one.

        Other versions, devices or thread counts round differently, so one seed must not mix them.
        `INCIDENTAL` keys may change.
        """
        path = self.path / ENVIRONMENT
        before = read_json(path) if path.exists() else environment
        changed = [
            key
            for key in environment
            if key not in INCIDENTAL and before.get(key) != environment[key]
        ]
        if changed:
            differences = ", ".join(
                f"{key} {before.get(key)} then, {environment[key]} now" for key in changed
            )
            raise RecordError(
                f"{self.path} was begun in another environment: {differences}; resume it in that "
                "one, use another --out, or delete it to redo"
            )
        write_json(path, environment)

    def _state_path(self, name: str) -> Path:
        return self.path / "states" / f"{name}.safetensors"
