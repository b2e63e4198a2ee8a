"""A local step: unlearning at the leaver, with its task, result and report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Protocol

from torch import nn

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import Batch, ClientSide
from secede.federation.training import LocalTraining, Loss
from secede.state import State


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
