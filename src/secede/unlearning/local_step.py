"""What a local step is given at the leaver and what it sends back."""

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
    """The leaver's side of an erasure: its data, its own last state and what it starts from."""

    reference: State
    own_state: State
    model: nn.Module  # the architecture; its values are overwritten
    fresh_model: Callable[[int], nn.Module]  # the n-th freshly initialised model
    batches: Callable[[int, int], Iterable[Batch]]  # by batch size and number of the pass
    loss: Loss
    global_state: State = field(default_factory=dict)  # empty: a step that starts from it raises
    training: LocalTraining = field(default_factory=LocalTraining)  # how the leaver trained
    own_weight: float | None = None  # share of the own state in the global one; None: not told

    @classmethod
    def of(cls, side: ClientSide) -> LocalTask:
        """Compute the reference from what the leaver has (eq. before Algorithm 1).

        A leaver that missed the last round has no share in the global state, which then is the mean
        of the others as it stands: the reference.
        """
        if side.own is None:
            raise ConfigError("the leaver has no own state yet: train a round with it first")
        if side.own.weight >= 1:
            raise ConfigError(
                "the leaver was alone in the last round: there is no mean of the others to start "
                "from; choose a method that runs at the server"
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
    """One tau of a grid search: the step at which it was exceeded and the accuracy there."""

    stop_distance: float
    steps: int
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class LocalReport:
    """How a local step went: scalars only, fit for records and receipts."""

    steps: int
    ended_by: str  # "stop-distance", "stop-accuracy", "stop-loss", "epochs", or a method's own word
    distance_to_own: float  # plain L2 over what can move, as all distances of a step
    distance_to_reference: float
    accuracy: float | None  # on the leaver's own samples, where labels are classes
    loss: float | None
    gradient_samples: int
    radius: float | None = None
    projections: int = 0  # steps after which the ball pulled the state back
    stop_distance: float | None = None
    stop_accuracy: float | None = None
    reach: float | None = None  # second choice: how many times over the own state was taken back
    own_share: float | None = None  # and how much of the labels' probability fell on that way
    own_weight: float | None = (
        None  # 0: it missed the last round, the reference is the global state
    )
    searched: tuple[Candidate, ...] = ()  # what a grid search for tau had to choose from
    search_target: float | None = None  # the accuracy that the search aimed for

    def as_dict(self) -> dict[str, object]:
        """Return the report by name, as records hold it."""
        return asdict(self)


@dataclass(frozen=True)
class LocalResult:
    """The state that post-training starts from, and the report that goes with it."""

    state: State
    report: LocalReport

    @property
    def gradient_samples(self) -> int:
        """Per-sample gradients computed at the leaver."""
        return self.report.gradient_samples


class LocalStep(Protocol):
    """Unlearning that runs where the leaver's data is."""

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return the state that post-training starts from."""
        ...
