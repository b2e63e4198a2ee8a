"""A simulated federation's clients: the state that each keeps on its disk, and who answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from secede import files
from secede import state as states
from secede.errors import SilentError, StorageError
from secede.federation.engine import ClientSide, Cost, OwnState, ReplyT, RoundReply
from secede.federation.simulator import Simulator
from secede.state import State

_FROM = "trained_from"


@dataclass(frozen=True)
class Sites:
    """Each client's last own state, in a file of its own."""

    folder: Path

    def save(self, name: str, own: OwnState, trained_from: str, *, is_next: bool = False) -> None:
        """Keep a client's last state; the next one lies beside the one in use until `commit`."""
        metadata = {"weight": repr(own.weight), _FROM: trained_from}
        states.save(own.state, self._path(name, ".next" if is_next else ""), metadata)

    def load(self, name: str) -> OwnState | None:
        """Return a client's last state; None if none belongs to the serving model."""
        if not self._path(name).exists():
            return None
        state, metadata = states.load(self._path(name))
        return OwnState(state, float(metadata["weight"]))

    def commit(self, name: str, trained_from: str | None) -> None:
        """Take the next state into use, if it is of the round that made the new model.

        That round began at `trained_from`. Without one, the client has no share in the new model.
        """
        next_path = self._path(name, ".next")
        if trained_from is not None and self._origin(next_path) == trained_from:
            try:
                files.move(next_path, self._path(name))
            except OSError as error:
                raise StorageError(f"cannot move {next_path}: {error.strerror}") from error
        self.delete_next(name)
        own = self.load(name)
        if own is not None and self._origin(self._path(name)) != trained_from and own.weight:
            self.save(name, OwnState(own.state, 0.0), "")

    def set_weight(self, name: str, weight: float) -> None:
        """Set the share that a client's next state has in the mean."""
        path = self._path(name, ".next")
        if path.exists():
            state, metadata = states.load(path)
            if metadata["weight"] != repr(weight):
                states.save(state, path, {**metadata, "weight": repr(weight)})

    def delete_next(self, name: str) -> None:
        """Delete a client's next state."""
        files.delete(self._path(name, ".next"))

    def delete(self, name: str) -> None:
        """Delete what is kept of a client."""
        self.delete_next(name)
        files.delete(self._path(name))

    def _origin(self, path: Path) -> str | None:
        return states.load(path)[1].get(_FROM) if path.exists() else None

    def _path(self, name: str, ending: str = "") -> Path:
        return self.folder / f"{name}{ending}.safetensors"


@dataclass(frozen=True)
class HomeEngine:
    """The simulator, with clients that may be gone or slow and keep their states on the disk."""

    simulator: Simulator
    sites: Sites
    names: Mapping[int, str]
    gone: frozenset[int] = frozenset()
    timeouts: Mapping[int, float] = field(default_factory=dict)  # seconds for some clients' answers
    timeout: float = float("inf")  # seconds for all the others
    check_update: Callable[[str, str], None] = lambda name, base: None  # raises to refuse one

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Train those who are present; the registry of models may refuse their updates.

        Each client keeps its new state beside the one that belongs to the old model.
        """
        base = states.digest(state)
        for client in clients:
            self.check_update(self.names[client], base)
        present = [client for client in clients if client not in self.gone]
        reply = self.simulator.train_round(state, present, phase=phase, number=number)
        total = sum(update.samples for update in reply.updates)
        for update in reply.updates:
            own = OwnState(update.state, update.samples / total)
            self.sites.save(self.names[update.client], own, base, is_next=True)
        return reply

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        """Ask a client that is present; SilentError if its answer comes too late."""
        if client in self.gone:
            raise SilentError(f"client {self.names[client]!r} does not answer")
        started = time.monotonic()
        reply = self.simulator.ask(client, task, global_state=global_state, number=number)
        timeout = self.timeouts.get(client, self.timeout)
        if time.monotonic() - started > timeout:
            raise SilentError(f"client {self.names[client]!r} took more than {timeout:g} seconds")
        return reply
