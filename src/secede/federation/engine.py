"""The contract between an erasure and the federation that it runs in.

An engine trains one round of the given clients, and asks one client to do a task on its own data.
The simulator implements it here; a live federation implements the same two methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from torch import Tensor, nn

from secede.federation.cost import Cost as Cost
from secede.state import State, check_all_finite, digest, is_finite, mean

Batch = tuple[Tensor, Tensor]  # inputs and labels
Loss = Callable[[Tensor, Tensor], Tensor]  # of outputs and labels


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The settings of a client's training in one round; the defaults are the paper's."""

    learning_rate: float = 0.01
    momentum: float = 0.9
    batch_size: int = 128
    epochs: int = 1

    def gradient_samples(self, count: int) -> int:
        """Return the number of per-sample gradients that a client with `count` samples computes."""
        return self.epochs * count


@dataclass(frozen=True)
class Update:
    """One client's update: its state after training and its number of samples."""

    client: int
    state: State
    samples: int

    @cached_property
    def digest(self) -> str:
        """The state's digest, computed once."""
        return digest(self.state)


@dataclass(frozen=True)
class RoundReply:
    """All updates of one round and their cost."""

    updates: tuple[Update, ...]
    cost: Cost


@dataclass(frozen=True)
class OwnState:
    """A client's own last state, and its weight: the state's share in the last mean.

    The weight is 0 if the client missed the last round.
    """

    state: State
    weight: float


@dataclass(frozen=True, kw_only=True)
class ClientSide:
    """The inputs of a client task: the client's own data and state, and the global state."""

    global_state: State
    own: OwnState | None  # None before its first round
    samples: int
    training: LocalTraining  # how the client trains in a round
    fresh_model: Callable[[int], nn.Module]  # the n-th freshly initialised model
    batches: Callable[[int, int], Iterable[Batch]]  # by batch size and pass number
    loss: Loss


class ClientReply(Protocol):
    """A client's reply to a task: one state, and the number of gradients."""

    @property
    def state(self) -> State:
        """The state that the client uploads."""
        ...

    @property
    def gradient_samples(self) -> int:
        """The number of per-sample gradients computed at the client."""
        ...


ReplyT = TypeVar("ReplyT", bound=ClientReply)


class Engine(Protocol):
    """Rounds and client tasks, in simulation or in a live federation."""

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Train `clients` from `state`; `phase` and `number` seed the round's draws."""
        ...

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        """Send `client` the global state and let it run `task` on its own data.

        `number` seeds the task's draws, such as dropout: tasks of one client with the same number
        draw the same.
        """
        ...


Mean = Callable[[Sequence[Update]], dict[str, Tensor]]


def aggregate(updates: Sequence[Update]) -> dict[str, Tensor]:
    """Return FedAvg's mean, weighted by samples; raise and name a client that is not finite."""
    averaged = mean([u.state for u in updates], [u.samples for u in updates])
    # A weighted mean is finite unless a state is not: one check instead of one per client.
    if not is_finite(averaged):
        names = [f"client {update.client}'s update" for update in updates]
        check_all_finite([update.state for update in updates], names)
    return averaged
