"""What a method is given and gives back: where post-training starts, and how its rounds go.

A method may ask the leaver, ask the retained clients, or ask nobody; the engine counts what it
asks for. Whatever its own rounds must remember it puts into `memory`, which is saved with every
checkpoint: an erasure that is killed goes on to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor, nn

from secede.errors import ConfigError
from secede.federation.cost import Cost
from secede.federation.engine import ClientSide, Engine, aggregate
from secede.federation.robust import Mean
from secede.state import State
from secede.unlearning.local_step import LocalResult, LocalStep, LocalTask
from secede.unlearning.update_history import UpdateHistory


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a client uploads from a task, how many gradients it took, and its sample count."""

    state: State
    gradient_samples: int
    samples: int


def ask_each(
    engine: Engine,
    clients: Sequence[int],
    task: Callable[[ClientSide], Reply],
    *,
    global_state: State,
    number: int = 0,
) -> tuple[list[Reply], Cost]:
    """Let every client run `task`; return the replies in order and the round's cost.

    `number` names the round's randomness: a method that asks in several rounds gives each its own.
    """
    replies, cost = list[Reply](), Cost()
    for client in clients:
        reply, one = engine.ask(client, task, global_state=global_state, number=number)
        replies.append(reply)
        cost += one
    return replies, replace(cost, rounds=1)


POST_TRAINING = "post-training"  # names the batches of its rounds: the same for every method


@dataclass(frozen=True, kw_only=True)
class Server:
    """What a method finds at the server."""

    engine: Engine
    global_state: State
    leaver: int
    retained: tuple[int, ...]
    fresh_state: Callable[[], State]  # freshly initialised, the same on every call
    fresh_model: Callable[[], nn.Module]  # the architecture, on the engine's device
    history: UpdateHistory | None = None  # what the server kept while training, if anything
    unlabelled: Tensor | None = None  # the server's own inputs, if it has any
    mean: Mean = aggregate  # of a plain round's updates
    weight: float | None = None  # the leaver's share in the last mean, where the server knows it


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where post-training starts, what it took to get there, and what later rounds need."""

    state: State
    cost: Cost = field(default_factory=Cost)
    report: Mapping[str, object] | None = None  # scalars only, fit for records and receipts
    memory: State = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """The state after one more round of post-training."""

    state: State
    cost: Cost
    memory: State = field(default_factory=dict)


class Method(Protocol):
    """Unlearning as the server drives it."""

    def start(self, server: Server) -> Start:
        """Return the state that the retained clients train from."""
        ...

    def check_history(self, history: UpdateHistory | None) -> None:
        """Raise, before anything is trained, if the method could not work with this history."""
        return

    def check_model(self, model: nn.Module) -> None:
        """Raise, before anything is trained, if the method could not work with this network."""
        return

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Take round `number` of post-training: FedAvg of the retained clients, unless a method
        has its own."""
        return average_round(server, state, memory, number)


def average_round(server: Server, state: State, memory: State, number: int) -> Recovered:
    """Let the retained clients train a round from `state` and average them."""
    reply = server.engine.train_round(state, server.retained, phase=POST_TRAINING, number=number)
    return Recovered(state=server.mean(reply.updates), cost=reply.cost, memory=memory)


@dataclass(frozen=True)
class TakeStep:
    """A local step as a task: a value, so that a live engine can send its name and settings."""

    step: LocalStep

    def __call__(self, side: ClientSide) -> LocalResult:
        """Take the step with what the client has."""
        task = LocalTask.of(side)
        result = self.step.unlearn(task)
        return replace(result, report=replace(result.report, own_weight=task.own_weight))


class LocalMethod(Method, Protocol):
    """A method whose start is a local step at the leaver: one model down, one state up."""

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return the state that post-training starts from."""
        ...

    def start(self, server: Server) -> Start:
        """Ask the leaver for the step."""
        task = TakeStep(self)
        result, cost = server.engine.ask(server.leaver, task, global_state=server.global_state)
        return Start(state=result.state, cost=cost, report=result.report.as_dict())


@dataclass(frozen=True)
class AtLeaver(LocalMethod):
    """Any local step, then plain post-training."""

    step: LocalStep

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Take the step."""
        found: object = self.step.unlearn(task)
        if not isinstance(found, LocalResult):
            step = _kind(self.step)
            raise ConfigError(f"{step}.unlearn returned {_kind(found)}, expected a LocalResult")
        return found


def started(method: Method, server: Server) -> Start:
    """Return a method's start; a user's own that is none is refused."""
    found: object = method.start(server)
    if not isinstance(found, Start):
        raise ConfigError(f"{_kind(method)}.start returned {_kind(found)}, expected a Start")
    return found


def _kind(value: object) -> str:
    return type(value).__name__
