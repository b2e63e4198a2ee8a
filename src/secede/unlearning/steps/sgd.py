"""SGD, or Adam, on any objective at the leaver, shared by the local steps.

It runs `Ascent` on the negated objective: gradients are clipped, only trainable parameters move,
and normalisation layers use the statistics of the start state. Nothing is read from the device
before a state, a distance or a result is requested.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError, StateError
from secede.federation.engine import Batch, Loss
from secede.state import State
from secede.unlearning.method import LocalReport, LocalResult, LocalTask
from secede.unlearning.steps import leaver_metrics
from secede.unlearning.steps.adam import AdamAscent
from secede.unlearning.steps.ascent import Ascent
from secede.unlearning.steps.leaver_metrics import Evaluation

_DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)

Optimiser = Literal["sgd", "adam"]


class Descent:
    """Gradient descent with clipping from a start state; `model` is overwritten.

    SGD has a momentum; Adam has its own and takes none.
    """

    def __init__(
        self,
        model: nn.Module,
        start: State,
        *,
        learning_rate: float,
        momentum: float,
        clip: float,
        optimiser: Optimiser = "sgd",
    ) -> None:
        self._objective: Loss | None = None
        objective = self._negated_objective
        self._ascent = (
            AdamAscent(model, start, loss=objective, learning_rate=learning_rate, clip=clip)
            if optimiser == "adam"
            else Ascent(
                model,
                start,
                loss=objective,
                learning_rate=learning_rate,
                momentum=momentum,
                clip=clip,
            )
        )

    @classmethod
    def as_trained(
        cls,
        task: LocalTask,
        start: State,
        *,
        learning_rate: float | None,
        momentum: float | None,
        clip: float,
        optimiser: Optimiser = "sgd",
    ) -> Descent:
        """Return a descent with the leaver's own training settings, where no others are given."""
        training = task.training
        return cls(
            task.model,
            start,
            learning_rate=learning_rate or training.learning_rate,
            momentum=training.momentum if momentum is None else momentum,
            clip=clip,
            optimiser=optimiser,
        )

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self._ascent.device

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return self._ascent.steps

    @property
    def gradient_samples(self) -> int:
        """Per-sample gradients computed so far."""
        return self._ascent.gradient_samples

    def step(self, inputs: Tensor, targets: Tensor, objective: Loss) -> None:
        """Take one clipped step down `objective(outputs, targets)`.

        `targets` has one row per sample: labels, or anything else that the objective compares with.
        """
        self._objective = objective
        self._ascent.ascend((inputs, targets))

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the current state; raise if it is not finite."""
        state = self._ascent.state()
        self._check_finite(states.is_finite(state))
        return state

    def distance_to(self, state: State) -> float:
        """Return the plain L2 distance to `state`, over the trainable parameters."""
        model, names = self._ascent.model, self._ascent.trainable_names
        current, other = states.live(model), states.without_aliases(state, model)
        states.check_schema(other, current)
        distance = states.distance(
            {name: current[name] for name in names},
            {name: other[name].to(self.device) for name in names},
        )
        self._check_finite(math.isfinite(distance))
        return distance

    def evaluate(self, samples: Sequence[Batch], loss: Loss) -> Evaluation:
        """Measure loss and accuracy over `samples`; raise if labels do not fit the model."""
        return leaver_metrics.evaluate(self._ascent.model, samples, loss=loss, device=self.device)

    def count_classes(self, samples: Sequence[Batch], loss: Loss, method: str) -> int:
        """Return the number of classes; raise if `method` has no second class to choose."""
        classes = self.evaluate(samples, loss).classes
        if classes is None or classes < 2:
            raise ConfigError(
                f"{method} needs at least two classes: outputs of shape (n, classes) and integer "
                "labels of shape (n,)"
            )
        return classes

    def result(self, task: LocalTask, samples: Sequence[Batch], *, ended_by: str) -> LocalResult:
        """Return the current state and its report."""
        state = self.state()
        measured = self.evaluate(samples, task.loss)
        report = LocalReport(
            steps=self.steps,
            ended_by=ended_by,
            distance_to_own=self.distance_to(task.own_state),
            distance_to_reference=self.distance_to(task.reference),
            accuracy=measured.accuracy,
            loss=measured.loss,
            gradient_samples=self.gradient_samples,
        )
        return LocalResult(state, report)

    def _negated_objective(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss that the ascent climbs."""
        assert self._objective is not None  # `step` sets it before every call
        return -self._objective(outputs, targets)

    def _check_finite(self, is_finite: bool) -> None:
        if not is_finite:
            raise StateError(
                f"the local step gave values that are not finite within {self.steps} steps: "
                "lower the learning rate or the clip, or take fewer epochs"
            )


def frozen(model: nn.Module, state: State) -> nn.Module:
    """Return a copy of `model` with `state`, in evaluation mode."""
    copied = copy.deepcopy(model)
    states.load_into(copied, state)
    return copied.eval()


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Switch dropout off in the block: targets that follow the outputs must not be random."""
    layers = [layer for layer in model.modules() if isinstance(layer, _DROPOUT)]
    rates = [layer.p for layer in layers]
    for layer in layers:
        layer.p = 0.0
    try:
        yield
    finally:
        for layer, rate in zip(layers, rates, strict=True):
            layer.p = rate


def own_samples(task: LocalTask, batch_size: int) -> list[Batch]:
    """Return the leaver's samples, checked; reading them changes no later draw."""
    with torch.random.fork_rng(devices=()):
        return [leaver_metrics.check_batch(batch) for batch in task.batches(batch_size, 0)]


def check_settings(
    *, learning_rate: float, momentum: float, clip: float, batch_size: int, epochs: int
) -> None:
    """Raise unless the settings of a descent are in range."""
    positive = {
        "learning_rate": learning_rate,
        "clip": clip,
        "batch_size": batch_size,
        "epochs": epochs,
    }
    for name, value in positive.items():
        if not value > 0:
            raise ConfigError(f"{name} must be positive, got {value}")
    if not 0 <= momentum < 1:
        raise ConfigError(f"momentum must be at least 0 and below 1, got {momentum}")
