"""SGD at the leaver towards any objective: what several local steps have in common.

It is the ascent's walker, sent the other way: the gradient is clipped, only trainable parameters
move, and normalisation layers run on the start's statistics. Nothing is read from the device
until a state, a distance or a result is asked for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError, StateError
from secede.federation.engine import Batch
from secede.federation.training import Loss
from secede.state import State
from secede.unlearning.local_step import LocalReport, LocalResult, LocalTask
from secede.unlearning.steps import leaver_metrics
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


class Descent:
    """Gradient descent with momentum and clipping from a given start; `model` is overwritten."""

    def __init__(
        self, model: nn.Module, start: State, *, learning_rate: float, momentum: float, clip: float
    ) -> None:
        self._objective: Loss | None = None
        self._walker = Ascent(
            model,
            start,
            loss=self._height,
            learning_rate=learning_rate,
            momentum=momentum,
            clip=clip,
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
    ) -> Descent:
        """Return a descent that goes on as the leaver trained, where nothing else is given."""
        usual = task.training
        return cls(
            task.model,
            start,
            learning_rate=learning_rate or usual.learning_rate,
            momentum=usual.momentum if momentum is None else momentum,
            clip=clip,
        )

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self._walker.device

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._walker.steps

    @property
    def gradient_samples(self) -> int:
        """Per-sample gradients computed so far."""
        return self._walker.gradient_samples

    def step(self, inputs: Tensor, targets: Tensor, objective: Loss) -> None:
        """Take one clipped step down `objective(outputs, targets)`.

        `targets` has one row per sample: labels, or whatever else the objective compares with.
        """
        self._objective = objective
        self._walker.ascend((inputs, targets))

    def state(self) -> dict[str, Tensor]:
        """Return a copy of where it stands; raise if that is not finite."""
        found = self._walker.state()
        self._check_finite(states.is_finite(found))
        return found

    def distance_to(self, state: State) -> float:
        """Return the plain L2 distance to `state`, over what can move."""
        model = self._walker.model
        here, there = states.live(model), states.without_aliases(state, model)
        states.check_schema(there, here)
        found = states.distance(
            {name: here[name] for name in self._walker.movable},
            {name: there[name].to(self.device) for name in self._walker.movable},
        )
        self._check_finite(math.isfinite(found))
        return found

    def evaluate(self, samples: Sequence[Batch], loss: Loss) -> Evaluation:
        """Measure loss and accuracy over `samples`; labels that do not fit the model raise."""
        return leaver_metrics.evaluate(self._walker.model, samples, loss=loss, device=self.device)

    def count_classes(self, samples: Sequence[Batch], loss: Loss, method: str) -> int:
        """Return how many classes there are; raise unless `method` has one to choose instead."""
        classes = self.evaluate(samples, loss).classes
        if classes is None or classes < 2:
            raise ConfigError(
                f"{method} needs class labels, and needs a second class to choose: outputs of "
                "shape (n, classes) and integer labels of shape (n,)"
            )
        return classes

    def result(self, task: LocalTask, samples: Sequence[Batch], *, ended_by: str) -> LocalResult:
        """Return where it stands, with the report that goes with it."""
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

    def _height(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return what the walker climbs: the objective, turned round."""
        assert self._objective is not None  # set by `step`, the only way to here
        return -self._objective(outputs, targets)

    def _check_finite(self, sound: bool) -> None:
        if not sound:
            raise StateError(
                f"the local step left the finite numbers within {self.steps} steps: "
                "lower the learning rate or the clip, or take fewer epochs"
            )


def frozen(model: nn.Module, state: State) -> nn.Module:
    """Return a copy of `model` that holds `state` and only answers."""
    twin = copy.deepcopy(model)
    states.load_into(twin, state)
    return twin.eval()


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Let every unit answer in training mode too: for targets that follow the answers."""
    layers = [layer for layer in model.modules() if isinstance(layer, _DROPOUT)]
    shares = [layer.p for layer in layers]
    for layer in layers:
        layer.p = 0.0
    try:
        yield
    finally:
        for layer, share in zip(layers, shares, strict=True):
            layer.p = share


def own_samples(task: LocalTask, batch_size: int) -> list[Batch]:
    """Return the leaver's samples, checked; measuring on them disturbs no later pass."""
    with torch.random.fork_rng(devices=()):
        return [leaver_metrics.checked(batch) for batch in task.batches(batch_size, 0)]


def check_settings(
    *, learning_rate: float, momentum: float, clip: float, batch_size: int, epochs: int
) -> None:
    """Raise unless a descent can be taken with these."""
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
