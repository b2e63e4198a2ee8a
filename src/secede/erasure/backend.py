"""What an erasure stands on: the little that a workflow needs of a federation.

The simulator implements it, and so does a live federation. Nothing here reaches into a client:
what clients know comes through the engine, as a state and some scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from secede.erasure.defences import gate
from secede.erasure.defences.gate import Counts, Tally
from secede.erasure.defences.guard import UpdateTrace
from secede.erasure.documents.receipt import Scope, Score, Setting, Software
from secede.federation.engine import Engine, OwnState
from secede.state import State
from secede.unlearning.method import Server
from secede.unlearning.registry import Situation


class FederationBackend(Protocol):
    """A federation that can be erased from. Whatever is random in it hangs on a fixed seed."""

    engine: Engine
    device: torch.device  # where the engine takes states
    clients: Mapping[str, int]  # names, and their numbers in the engine
    classes: int
    classes_told: bool = True  # not guessed from the network
    scenario: str  # what is known about the leaver's data, "" for nothing: some methods need it
    training_rounds: int  # that the model took, and retraining takes

    def situation(self, client: str) -> Situation:
        """Say what there is to erase `client` with."""
        ...

    def scope(self, client: str) -> Scope:
        """Say what `client` has put in."""
        ...

    def server(self, client: str, retained: Sequence[str], state: State, seconds: float) -> Server:
        """Return what a method finds; its engine raises SilentError if the leaver is silent."""
        ...

    def last(self, client: str) -> OwnState | None:
        """Return the client's last update, if the server has it: not under secure aggregation."""
        ...

    def trace(self, client: str) -> UpdateTrace | None:
        """Return what the server knows of that update where it has it not; None: nothing."""
        return None

    def seen(self, client: str) -> tuple[str, ...]:
        """Return the digests of the client's updates that were written down, the oldest first."""
        return ()

    def fresh_model(self, number: int) -> nn.Module:
        """Return the n-th freshly initialised model, the same on every call."""
        ...

    def samples(self, client: str) -> int | None:
        """Return how many samples the federation pinned for `client`; None: it never did."""
        commitment = self.scope(client).commitment
        return None if commitment is None else commitment.samples

    def hurry(self, seconds: float) -> None:
        """Give every retained client so long for one answer, where the engine can tell."""
        return

    def require(self, enough: Callable[[Sequence[str]], None]) -> None:
        """Hear what raises if no more than some clients take part in a round that hides updates."""
        return

    def tally(self, clients: Sequence[int], state: State) -> Tally:
        """Let clients count their right answers by class, one by one."""
        return gate.tally(self.engine, clients, state)

    def held_out(self, state: State) -> Counts | None:
        """Count right answers by class on the server's own samples, if it has any."""
        return None

    def aggregated(self, shares: Mapping[str, float]) -> None:
        """Hear whose updates went into a round's mean, and with which share.

        After a mean that does not weigh, all shares are 0: nobody's can be taken out of it.
        """
        return

    def trained(self, start: str, state: State) -> None:
        """Hear which model came of the round that began at the one with digest `start`."""
        return

    def scores(self, client: str, before: State, after: State) -> tuple[Score, ...]:
        """Return what else the server can measure: held-out samples, probes. It may be nothing."""
        return ()

    def training(self) -> dict[str, Setting]:
        """Return what a round of training is made of, and the seed of all that is random."""
        return {}

    def limits(self, client: str) -> tuple[str, ...]:
        """Return what else the receipt must say of this erasure, in sentences."""
        return ()

    def software(self) -> Software:
        """Return versions and environment."""
        ...

    def holdings(self, client: str) -> tuple[str, ...]:
        """Return what the server keeps of `client` alone: some of the keys of `gone.WORDS`."""
        ...

    def roll_back(self) -> None:
        """Forget what rounds that led nowhere left at the clients, where they are told so."""
        return

    def settle(self, client: str, trained_from: str | None) -> None:
        """Go on with the new model and without `client`; destroy all holdings of it.

        `trained_from` is the digest that the last round started from, None if there was none.
        Called again after a kill, it changes nothing.
        """
        ...
