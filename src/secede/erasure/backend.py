"""What an erasure needs of a federation, in four parts that a backend implements together.

The simulator implements it, and so does a live federation. Nothing here reaches into a client:
what clients know comes through the engine, as a state and some scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from secede.erasure.defences import gate
from secede.erasure.defences.gate import Counts, Tally
from secede.erasure.defences.guard import UpdateTrace
from secede.erasure.documents import Plan, Scope, Score, SignedReading, Software
from secede.erasure.types import Setting
from secede.errors import ConfigError
from secede.federation.engine import Cost, Engine, OwnState
from secede.state import State
from secede.unlearning import Server, Situation


class ClientEngine(Protocol):
    """The engine that reaches the clients. Everything random in it follows from a fixed seed."""

    engine: Engine
    device: torch.device  # where the engine takes states
    clients: Mapping[str, int]  # names, and their numbers in the engine
    training_rounds: int  # that the model took, and retraining takes

    def server(self, client: str, retained: Sequence[str], state: State, timeout: float) -> Server:
        """Return a method's view of the server; SilentError means that the leaver did not reply."""
        ...

    def fresh_model(self, number: int) -> nn.Module:
        """Return the n-th freshly initialised model, the same on every call."""
        ...

    def set_timeout(self, seconds: float) -> None:
        """Set the time that each retained client has for one answer, if the engine supports it."""
        return

    def show_plan(self, plan: Plan) -> None:
        """Take note of the plan that is carried out, for clients that hold a step against it."""
        return

    def require_quorum(self, check: Callable[[Sequence[str]], None]) -> None:
        """Let `check` raise for the clients of a round that hides updates, before its sum opens."""
        return

    def set_retraining(self, retraining: bool) -> None:
        """Set whether rounds retrain from scratch, so that a live engine repeats the training's."""
        return

    def training(self) -> dict[str, Setting]:
        """Return the settings of a round of training, and the seed of all that is random."""
        return {}

    def software(self) -> Software:
        """Return versions and environment."""
        ...


class ClientRecords(Protocol):
    """What the server knows and keeps of a client."""

    scenario: str  # what is known about the leaver's data, "" for nothing: some methods need it

    def situation(self, client: str) -> Situation:
        """Return what there is to erase `client` with."""
        ...

    def scope(self, client: str) -> Scope:
        """Return what `client` has contributed."""
        ...

    def samples(self, client: str) -> int | None:
        """Return how many samples the federation pinned for `client`; None: it never did."""
        commitment = self.scope(client).commitment
        return None if commitment is None else commitment.samples

    def last_update(self, client: str) -> OwnState | None:
        """Return the client's last update, if the server has it: not under secure aggregation."""
        ...

    def update_trace(self, client: str) -> UpdateTrace | None:
        """Return what the server knows of an update whose values it has not; None: nothing."""
        return None

    def recorded_digests(self, client: str) -> tuple[str, ...]:
        """Return the digests of the client's updates that were recorded, the oldest first."""
        return ()

    def holdings(self, client: str) -> tuple[str, ...]:
        """Return what the server keeps of `client` alone: keys of `DESTROYED_KINDS`."""
        ...

    def files_to_destroy(self, client: str) -> Sequence[Path]:
        """Return the files that `commit` deletes: none may be a link or have further names."""
        return ()

    def limits(self, client: str) -> tuple[str, ...]:
        """Return what else the receipt must say of this erasure, in sentences."""
        return ()


class ModelMeasurement(Protocol):
    """What can be measured of a model, at the clients and at the server."""

    engine: Engine
    classes: int
    classes_told: bool = True  # not guessed from the network
    count_variance: float = 0.0  # of a client's changes in a class, by its rounding

    def tally(self, clients: Sequence[int], state: State, before: State | None = None) -> Tally:
        """Let clients count their right answers by class, and the changes since `before`.

        Clients must have counted with `before` already.
        """
        return gate.tally(self.engine, clients, state, before)

    def read_canaries(
        self, client: str, state: State, plan: Plan, model: str
    ) -> tuple[SignedReading, Cost]:
        """Let a client read its canaries in a model, given by its digest too, and sign counts."""
        raise ConfigError("clients of this federation read no canaries")

    def held_out(self, state: State) -> Counts | None:
        """Count right answers by class on the server's own samples, if it has any."""
        return None

    def scores(self, client: str, before: State, after: State) -> tuple[Score, ...]:
        """Return what else the server can measure: held-out samples, probes. It may be nothing."""
        return ()


class ErasureEvents(Protocol):
    """Events of an erasure, by which a backend keeps what belongs to the serving model."""

    def aggregated(self, shares: Mapping[str, float]) -> None:
        """Note whose updates went into a round's mean, and with which share.

        After a mean that does not weigh, all shares are 0: nobody's can be taken out of it.
        """
        return

    def trained(self, start: str, state: State) -> None:
        """Note the model of the round that began at the one with digest `start`."""
        return

    def roll_back(self) -> None:
        """Tell clients to forget what rounds without a result left with them, where possible."""
        return

    def commit(self, client: str, trained_from: str | None) -> None:
        """Switch to the new model, drop `client`, and destroy all holdings of it.

        `trained_from` is the digest that the last round started from, None if there was none.
        Called again after a kill, it changes nothing.
        """
        ...


class FederationBackend(ClientEngine, ClientRecords, ModelMeasurement, ErasureEvents, Protocol):
    """A federation that clients can be erased from."""
