"""A simulated federation's clients over time: what each keeps on its own disk, and who answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from secede import files
from secede import state as states
from secede.errors import SilentError, StorageError
from secede.federation.cost import Cost
from secede.federation.engine import ClientSide, OwnState, ReplyT, RoundReply
from secede.federation.simulator import Simulator
from secede.state import State

_FROM = "trained_from"


@dataclass(frozen=True)
class Sites:
    """Each client's last own state, in a file of its own."""

    folder: Path

    def save(self, name: str, own: OwnState, trained_from: str, *, beside: bool = False) -> None:
        """Keep a client's last state; `beside` the one in use until it is settled."""
        metadata = {"weight": repr(own.weight), _FROM: trained_from}
        states.save(own.state, self._path(name, ".next" if beside else ""), metadata)

    def load(self, name: str) -> OwnState | None:
        """Return a client's last state; None if none belongs to the serving model."""
        if not self._path(name).exists():
            return None
        state, metadata = states.load(self._path(name))
        return OwnState(state, float(metadata["weight"]))

    def settle(self, name: str, trained_from: str | None) -> None:
        """Take the state of the round that began at `trained_from`, which made the new model.

        If there was none, what the client has got no share in the new model.
        """
        beside = self._path(name, ".next")
        if trained_from is not None and self._origin(beside) == trained_from:
            try:
                files.move(beside, self._path(name))
            except OSError as error:
                raise StorageError(f"cannot move {beside}: {error.strerror}") from error
        self.drop(name)
        own = self.load(name)
        if own is not None and self._origin(self._path(name)) != trained_from and own.weight:
            self.save(name, OwnState(own.state, 0.0), "")

    def weigh(self, name: str, weight: float) -> None:
        """Say which share the state that lies beside the one in use has got in the mean."""
        path = self._path(name, ".next")
        if path.exists():
            state, metadata = states.load(path)
            if metadata["weight"] != repr(weight):
                states.save(state, path, {**metadata, "weight": repr(weight)})

    def drop(self, name: str) -> None:
        """Remove what lies beside the state in use."""
        files.delete(self._path(name, ".next"))

    def forget(self, name: str) -> None:
        """Remove what is kept of a client."""
        self.drop(name)
        files.delete(self._path(name))

    def _origin(self, path: Path) -> str | None:
        return states.load(path)[1].get(_FROM) if path.exists() else None

    def _path(self, name: str, ending: str = "") -> Path:
        return self.folder / f"{name}{ending}.safetensors"


@dataclass(frozen=True)
class HomeEngine:
    """The simulator, with clients that are gone, slow, or keep their states on the disk."""

    simulator: Simulator
    sites: Sites
    names: Mapping[int, str]
    gone: frozenset[int] = frozenset()
    seconds: Mapping[int, float] = field(default_factory=dict)  # that a client has to answer
    patience: float = float("inf")  # seconds for all the others
    check: Callable[[str, str], None] = lambda name, base: None  # refuses an update

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Train those who are there; no update is taken that the registry of models refuses.

        Each client keeps its own state beside the one that belongs to the old model.
        """
        begun = states.digest(state)
        for client in clients:
            self.check(self.names[client], begun)
        there = [client for client in clients if client not in self.gone]
        reply = self.simulator.train_round(state, there, phase=phase, number=number)
        total = sum(update.samples for update in reply.updates)
        for update in reply.updates:
            own = OwnState(update.state, update.samples / total)
            self.sites.save(self.names[update.client], own, begun, beside=True)
        return reply

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        """Ask a client that is there; an answer that comes too late is not looked at."""
        if client in self.gone:
            raise SilentError(f"client {self.names[client]!r} does not answer")
        started = time.monotonic()
        reply = self.simulator.ask(client, task, global_state=global_state, number=number)
        most = self.seconds.get(client, self.patience)
        if time.monotonic() - started > most:
            raise SilentError(f"client {self.names[client]!r} took more than {most:g} seconds")
        return reply
