"""Second choice: distil the others' mean without the labels that are the leaver's own. Ours.

The leaver finds its own labels by extrapolating the others' mean w_ref away from its own state
(`own_labels.py`). It lowers each to its probability there, but not below the floor of natural
errors; the rest goes to w_ref's second choice. A label that has fallen does not rise
again, so forgetting spreads to labels that use the same features. One upload, no history.
Post-training must not lead back (`post_training_hold.py`). Descends from FedQUIT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Literal

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import Batch
from secede.state import State
from secede.unlearning.method import LocalResult, LocalTask
from secede.unlearning.post_training_hold import PostTrainingHold, heaviness
from secede.unlearning.steps import (
    Descent,
    LabelTargets,
    Teacher,
    of_label,
    own_samples,
    without_dropout,
)

LABEL_CHOICES, BEGIN_CHOICES = ("weighed", "own", "all"), ("reference", "global")
WINDOWS_PER_EPOCH = 8  # the accuracy is checked at the end of each


@dataclass(frozen=True, kw_only=True)
class SecondChoice(PostTrainingHold):
    """Distil the reference's outputs, with the leaver's own labels lowered, down to chance."""

    labels: Literal["weighed", "own", "all"] = "weighed"  # which to lower; see _kept_fraction
    floor: bool = True  # lower no label below the rate of natural errors
    share: float = 0.1  # of its labels' probability: extrapolate until this much has gone
    begin: Literal["reference", "global"] = "reference"
    level: float | None = None  # stop at this accuracy on those labels; None: chance
    epochs: int = 2  # at most, unless they are fewer than min_steps
    min_steps: int = 20  # a leaver with few samples takes more epochs
    learning_rate: float | None = None  # None: as in the leaver's own training
    momentum: float | None = None
    batch_size: int | None = None
    clip: float = 5.0
    radius: float | None = None  # of an L2 ball around the reference; None: no ball
    hold: float = 1.0  # see post_training_hold.py
    hold_first: float | Literal["weighed"] | None = "weighed"
    hold_by: Literal["model", "neuron"] = "neuron"

    def __post_init__(self) -> None:
        for name in ("epochs", "min_steps", "learning_rate", "batch_size", "clip", "radius"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be positive, got {value}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if not 0 < self.share < 1:
            raise ConfigError(f"share must be above 0 and below 1, got {self.share}")
        if self.level is not None and not 0 <= self.level < 1:
            raise ConfigError(f"level must be at least 0 and below 1, got {self.level}")
        for name, choices in (("labels", LABEL_CHOICES), ("begin", BEGIN_CHOICES)):
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        self.check_hold()

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return the state after the distillation: at chance, or after all epochs."""
        return self._unlearn(task)

    def unlearn_again(self, task: LocalTask, start: State, *, max_steps: int) -> LocalResult:
        """Take at most `max_steps` more steps from `start`, with the same targets and new batches.

        No erasure does this by default; see examples/explored/twice.py.
        """
        return self._unlearn(task, start, max_steps)

    def _unlearn(
        self, task: LocalTask, start: State | None = None, max_steps: int | None = None
    ) -> LocalResult:
        batch_size = self.batch_size or task.training.batch_size
        begin = task.reference if self.begin == "reference" else task.global_state
        descent = Descent.as_trained(
            task,
            begin if start is None else start,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            clip=self.clip,
        )
        samples = own_samples(task, batch_size)
        classes = descent.count_classes(samples, task.loss, "second-choice")
        teacher = Teacher(task.model, begin)
        level = 1 / classes if self.level is None else self.level
        epochs = max(self.epochs, math.ceil(self.min_steps / len(samples)))
        min_steps = len(samples) if max_steps is None else 1
        passes: Iterator[Batch] = _passes(task, batch_size, range(1, epochs + 1))
        if max_steps is not None:
            passes = islice(_passes(task, batch_size, count(epochs + 1)), max_steps)
        kept_fraction = self._kept_fraction(task.own_weight)
        if self.floor:
            teacher.set_floor(samples, classes)
        if kept_fraction and not teacher.find_own_labels(
            task.own_state, task.own_weight, samples, self.share, kept_fraction=kept_fraction
        ):
            ended_by = "nothing-own"
        else:
            with without_dropout(task.model):
                at_level = _descend(
                    descent, teacher, passes, epoch=len(samples), min_steps=min_steps, level=level
                )
            if at_level:
                ended_by = "chance" if self.level is None else "stop-accuracy"
            else:
                ended_by = "epochs" if max_steps is None else "max-steps"
        result = self._within_ball(task, descent.result(task, samples, ended_by=ended_by), samples)
        report = replace(
            result.report, stop_accuracy=level, reach=teacher.reach, own_share=teacher.own_share
        )
        return LocalResult(result.state, report)

    def _kept_fraction(self, weight: float | None) -> float:
        """Return the fraction of its extrapolated probability that a label keeps.

        Weighed: the larger the leaver's weight, the less of its labels comes from the others.
        """
        if self.labels == "weighed":
            return 1 - heaviness(weight)
        return float(self.labels == "own")

    def _within_ball(
        self, task: LocalTask, result: LocalResult, samples: Sequence[Batch]
    ) -> LocalResult:
        """Return the result; if it lies outside the ball, project and measure it again."""
        report = replace(result.report, radius=self.radius)
        if self.radius is None or report.distance_to_reference <= self.radius:
            return LocalResult(result.state, report)
        names = [n for n, p in task.model.named_parameters() if p.requires_grad]
        parameters, center = (
            {name: state[name] for name in names} for state in (result.state, task.reference)
        )
        state = {**result.state, **states.project(parameters, center, self.radius)}
        projected = Descent.as_trained(
            task, state, learning_rate=None, momentum=None, clip=self.clip
        )
        measured = projected.evaluate(samples, task.loss)
        return LocalResult(
            state,
            replace(
                report,
                projections=1,
                distance_to_reference=self.radius,
                distance_to_own=projected.distance_to(task.own_state),
                accuracy=measured.accuracy,
                loss=measured.loss,
            ),
        )


def _descend(
    descent: Descent,
    teacher: Teacher,
    batches: Iterable[Batch],
    *,
    epoch: int,
    min_steps: int,
    level: float,
) -> bool:
    """Take `min_steps` steps or more, until the own labels' accuracy is at `level`.

    Return whether it got there. `epoch` is the number of steps in an epoch.
    """
    window = max(1, epoch // WINDOWS_PER_EPOCH)
    accuracy = _OwnLabelAccuracy(descent.device)
    for number, (inputs, labels) in enumerate(batches, start=1):
        inputs, labels = inputs.to(descent.device), labels.to(descent.device)
        descent.step(inputs, labels, _objective(teacher(inputs, labels), accuracy))
        if number % window == 0:
            if number >= min_steps and accuracy.value() <= level:
                return True
            accuracy = _OwnLabelAccuracy(descent.device)
    return False


class _OwnLabelAccuracy:
    """The accuracy on the leaver's own labels, weighted by what they should lose; on the device."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(2, device=device)

    def add(self, weights: Tensor, hits: Tensor) -> None:
        self._sums += torch.stack(((weights * hits).sum(), weights.sum()))

    def value(self) -> float:
        hits, weights = self._sums.tolist()
        return hits / weights if weights else 0.0


def _objective(
    targets: LabelTargets, accuracy: _OwnLabelAccuracy
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the cross entropy with the targets, which depend on the model's current outputs."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            current = of_label(outputs.softmax(dim=1), labels)
            hits = (outputs.argmax(dim=1) == labels).to(current.dtype)
            accuracy.add(targets.lost_probability(current), hits)
            distribution = targets.distribution(labels, current)
        return nn.functional.cross_entropy(outputs, distribution)

    return loss


def _passes(task: LocalTask, batch_size: int, numbers: Iterable[int]) -> Iterator[Batch]:
    for number in numbers:
        yield from task.batches(batch_size, number)
