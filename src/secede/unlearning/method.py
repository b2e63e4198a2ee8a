"""The contracts of a method, and of a local step at the leaver, with its task, result and report.

A method says where post-training starts, and how its rounds run. It may ask the leaver, the
retained clients, or nobody; the engine counts the cost. What its own rounds must remember goes into
`memory`, which every checkpoint saves: an erasure that is killed resumes to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol

from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import (
    Batch,
    ClientSide,
    Cost,
    Engine,
    LocalTraining,
    Loss,
    Mean,
    aggregate,
)
from secede.state import State
from secede.unlearning.update_history import UpdateHistory


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A client's reply to a task: the uploaded state, its gradients and samples."""

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

    `number` seeds the round's draws: a method that asks in several rounds numbers them.
    """
    replies, cost = list[Reply](), Cost()
    for client in clients:
        reply, reply_cost = engine.ask(client, task, global_state=global_state, number=number)
        replies.append(reply)
        cost += reply_cost
    return replies, replace(cost, rounds=1)


POST_TRAINING = "post-training"  # seeds the batches of its rounds: the same for every method


@dataclass(frozen=True, kw_only=True)
class Server:
    """What a method is given: the engine, the global state and the clients."""

    engine: Engine
    global_state: State
    leaver: int
    retained: tuple[int, ...]
    fresh_state: Callable[[], State]  # freshly initialised, the same on every call
    fresh_model: Callable[[], nn.Module]  # the architecture, on the engine's device
    history: UpdateHistory | None = None  # of the training, if the server recorded one
    unlabelled: Tensor | None = None  # the server's own inputs, if it has any
    mean: Mean = aggregate  # of a plain round's updates
    weight: float | None = None  # the leaver's share in the last mean, if the server knows it


@dataclass(frozen=True, kw_only=True)
class Start:
    """The state that post-training starts from, its cost, and the memory of later rounds."""

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
    """An unlearning method, as the server runs it."""

    def start(self, server: Server) -> Start:
        """Return the state that post-training starts from."""
        ...

    def check_history(self, history: UpdateHistory | None) -> None:
        """Raise before any training if the method cannot use this history."""
        return

    def check_model(self, model: nn.Module) -> None:
        """Raise before any training if the method cannot use this model."""
        return

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Take round `number` of post-training; by default FedAvg of the retained clients."""
        return average_round(server, state, memory, number)


def average_round(server: Server, state: State, memory: State, number: int) -> Recovered:
    """Train a round of the retained clients from `state` and average their updates."""
    reply = server.engine.train_round(state, server.retained, phase=POST_TRAINING, number=number)
    return Recovered(state=server.mean(reply.updates), cost=reply.cost, memory=memory)


@dataclass(frozen=True, kw_only=True)
class LocalTask:
    """What a local step is given: the leaver's data, its own last state and the start states."""

    reference: State
    own_state: State
    model: nn.Module  # the architecture; a step overwrites its values
    fresh_model: Callable[[int], nn.Module]  # the n-th freshly initialised model
    batches: Callable[[int, int], Iterable[Batch]]  # by batch size and number of the pass
    loss: Loss
    global_state: State = field(default_factory=dict)  # if empty, steps that start from it raise
    training: LocalTraining = field(default_factory=LocalTraining)  # how the leaver trained
    own_weight: float | None = None  # share of the own state in the last mean; None: unknown

    @classmethod
    def of(cls, side: ClientSide) -> LocalTask:
        """Return the task at a client; compute the reference (equation before Algorithm 1).

        A leaver that missed the last round has no share in the global state: then the global state
        is the mean of the others, so the reference.
        """
        if side.own is None:
            raise ConfigError("the leaver has no own state yet: train a round with it first")
        if side.own.weight >= 1:
            raise ConfigError(
                "the leaver was alone in the last round, so there is no mean of the others to "
                "start from; choose a method that runs at the server"
            )
        return cls(
            reference=states.reference(side.global_state, side.own.state, weight=side.own.weight),
            own_state=side.own.state,
            model=side.fresh_model(0),
            fresh_model=side.fresh_model,
            batches=side.batches,
            loss=side.loss,
            global_state=side.global_state,
            training=side.training,
            own_weight=side.own.weight,
        )


@dataclass(frozen=True)
class Candidate:
    """One tau of a grid search: the step that exceeded it, and the accuracy there."""

    stop_distance: float
    steps: int
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class LocalReport:
    """The measurements of a local step: scalars only, fit for records and receipts."""

    steps: int
    ended_by: str  # "stop-distance", "stop-accuracy", "stop-loss", "epochs", or a method's own word
    distance_to_own: float  # plain L2 over the trainable parameters, as all distances here
    distance_to_reference: float
    accuracy: float | None  # on the leaver's own samples, where labels are classes
    loss: float | None
    gradient_samples: int
    radius: float | None = None
    projections: int = 0  # steps after which the state was projected into the ball
    stop_distance: float | None = None
    stop_accuracy: float | None = None
    reach: float | None = None  # second choice: the factor k of the extrapolation
    own_share: float | None = None  # second choice: the labels' probability that it took away
    own_weight: float | None = None  # 0: the leaver missed the last round
    searched: tuple[Candidate, ...] = ()  # the candidates of a grid search for tau
    search_target: float | None = None  # the accuracy that the search looked for

    def as_dict(self) -> dict[str, object]:
        """Return the report as a dict, for records."""
        return asdict(self)


@dataclass(frozen=True)
class LocalResult:
    """The state that post-training starts from, and its report."""

    state: State
    report: LocalReport

    @property
    def gradient_samples(self) -> int:
        """The number of per-sample gradients computed at the leaver."""
        return self.report.gradient_samples


class LocalStep(Protocol):
    """Unlearning at the leaver, with its data."""

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return the state that post-training starts from."""
        ...


@dataclass(frozen=True)
class TakeStep:
    """A local step as a client task: a value, so a live engine can send its name and settings."""

    step: LocalStep

    def __call__(self, side: ClientSide) -> LocalResult:
        """Take the step at the client."""
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
class LocalStepMethod(LocalMethod):
    """Any local step as a method, followed by plain post-training."""

    step: LocalStep

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Take the step; raise if it returns no LocalResult."""
        result: object = self.step.unlearn(task)
        if not isinstance(result, LocalResult):
            step = _type_name(self.step)
            raise ConfigError(
                f"{step}.unlearn returned {_type_name(result)}, expected a LocalResult"
            )
        return result


def settings_of(method: Method) -> dict[str, object]:
    """Return the settings of a method by name."""
    step: Any = method.step if isinstance(method, LocalStepMethod) else method
    if not is_dataclass(step):
        return {}
    return {f.name: getattr(step, f.name) for f in fields(step) if f.init}


def checked_start(method: Method, server: Server) -> Start:
    """Return the method's start; raise if a user's method returns something else."""
    start: object = method.start(server)
    if not isinstance(start, Start):
        raise ConfigError(
            f"{_type_name(method)}.start returned {_type_name(start)}, expected a Start"
        )
    return start


def _type_name(value: object) -> str:
    return type(value).__name__
