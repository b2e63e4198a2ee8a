"""The contract between the erasure workflow and whatever runs the federation.

An engine trains one round on the clients it is told, and asks one client to do a task on its
own data. The simulator implements it here; a live federation implements the same two methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from torch import Tensor, nn

from secede.federation.cost import Cost
from secede.federation.training import LocalTraining, Loss
from secede.state import State, check_all_finite, digest, is_finite, mean

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Update:
    """What one client sends after training: its state and how many samples stand behind it."""

    client: int
    state: State
    samples: int

    @cached_property
    def digest(self) -> str:
        """The state's digest, computed once."""
        return digest(self.state)


@dataclass(frozen=True)
class RoundReply:
    """All updates of one round and what they cost."""

    updates: tuple[Update, ...]
    cost: Cost


@dataclass(frozen=True)
class OwnState:
    """What a client keeps of itself: its last state and the share that state has in the last mean.

    The share is 0 if the client missed the last round: the mean then holds other states alone.
    """

    state: State
    weight: float


@dataclass(frozen=True, kw_only=True)
class ClientSide:
    """What a task finds at a client: its own data and memory, nothing of anybody else's."""

    global_state: State
    own: OwnState | None  # None before its first round
    samples: int
    training: LocalTraining  # how it trains in a round
    fresh_model: Callable[[int], nn.Module]  # the n-th freshly initialised model
    batches: Callable[[int, int], Iterable[Batch]]  # by batch size and number of the pass
    loss: Loss


class ClientReply(Protocol):
    """What a client sends back from a task: one state, and how many gradients it took."""

    @property
    def state(self) -> State:
        """The state that is uploaded."""
        ...

    @property
    def gradient_samples(self) -> int:
        """Per-sample gradients computed at the client."""
        ...


ReplyT = TypeVar("ReplyT", bound=ClientReply)


class Engine(Protocol):
    """Runs rounds and client tasks, in simulation or on a live federation."""

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Let `clients` train from `state`; phase and number name the round's randomness."""
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

        `number` names the task's randomness, dropout and the like: whoever asks a client several
        times gives each time another one, or all draw the same.
        """
        ...


def aggregate(updates: Sequence[Update]) -> dict[str, Tensor]:
    """Return FedAvg's mean, each client weighted by its samples; a broken update is named."""
    averaged = mean([u.state for u in updates], [u.samples for u in updates])
    # A weighted mean is finite unless a state is not: one look instead of one for each client.
    if not is_finite(averaged):
        names = [f"client {update.client}'s update" for update in updates]
        check_all_finite([update.state for update in updates], names)
    return averaged
