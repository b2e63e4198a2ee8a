"""Second choice: the leaver teaches the others' mean to answer as if it had never been there.

Which of its labels are its own doing it finds by going the other way (`beyond.py`). Each of them is
lowered to what it has there, but not below what it has by nature (`floor.py`); what it loses goes
to the second choice, w_ref's answer without it. What has fallen on the way does not rise again, so
forgetting spreads to labels that rest on the same. One upload, no history. Post-training may not
undo it (`holding.py`). Descends from FedQUIT's virtual teacher.
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
from secede.unlearning.local_step import LocalResult, LocalTask
from secede.unlearning.post_training_hold import Holding, heaviness
from secede.unlearning.steps.own_labels import Lesson, Teacher, of_label
from secede.unlearning.steps.sgd import Descent, own_samples, without_dropout

LABELS, BEGINNINGS = ("weighed", "own", "all"), ("reference", "global")
WINDOWS = 8  # of an epoch; after each the leaver looks at its accuracy


@dataclass(frozen=True, kw_only=True)
class SecondChoice(Holding):
    """Distil the reference's answers, with the leaver's own labels lowered, until they are gone."""

    labels: Literal["weighed", "own", "all"] = "weighed"  # which are lowered; see _keep
    floor: bool = True  # no label is lowered below what it has by nature
    share: float = (
        0.1  # of its labels' probability that must be its own; it looks further until it is
    )
    begin: Literal["reference", "global"] = "reference"
    level: float | None = None  # accuracy on those labels at which it stops; None: chance
    epochs: int = 2  # at most, unless those are few steps
    least_steps: int = 20  # a leaver with little data goes over it more often
    learning_rate: float | None = None  # None: as in the leaver's own training
    momentum: float | None = None
    batch_size: int | None = None
    clip: float = 5.0
    radius: float | None = None  # of an L2 ball around the reference; None: no ball
    hold: float = 1.0  # see holding.py
    hold_first: float | Literal["weighed"] | None = "weighed"
    hold_by: Literal["model", "neuron"] = "neuron"

    def __post_init__(self) -> None:
        for name in ("epochs", "least_steps", "learning_rate", "batch_size", "clip", "radius"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be positive, got {value}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if not 0 < self.share < 1:
            raise ConfigError(f"share must be above 0 and below 1, got {self.share}")
        if self.level is not None and not 0 <= self.level < 1:
            raise ConfigError(f"level must be at least 0 and below 1, got {self.level}")
        for name, known in (("labels", LABELS), ("begin", BEGINNINGS)):
            if (told := getattr(self, name)) not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}, got {told!r}")
        self.check_hold()

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return where the distillation ended: at chance, or after all its epochs."""
        return self._unlearn(task)

    def unlearn_again(self, task: LocalTask, start: State, *, most_steps: int) -> LocalResult:
        """Take a short further step, from where others are by now: the same lesson, new passes.

        No erasure takes it by itself; see examples/explored/twice.py.
        """
        return self._unlearn(task, start, most_steps)

    def _unlearn(
        self, task: LocalTask, start: State | None = None, most_steps: int | None = None
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
        epochs = max(self.epochs, math.ceil(self.least_steps / len(samples)))
        least = len(samples) if most_steps is None else 1
        passes: Iterator[Batch] = _passes(task, batch_size, range(1, epochs + 1))
        if most_steps is not None:
            passes = islice(_passes(task, batch_size, count(epochs + 1)), most_steps)
        keep = self._keep(task.own_weight)
        if self.floor:
            teacher.lower_no_further(samples, classes)
        if keep and not teacher.look_beyond(task, samples, self.share, keep=keep):
            ended_by = "nothing-own"
        else:
            with without_dropout(task.model):
                arrived = _descend(descent, teacher, passes, len(samples), least, level)
            at_level = "chance" if self.level is None else "stop-accuracy"
            ended_by = at_level if arrived else "epochs" if most_steps is None else "most-steps"
        result = self._within_ball(task, descent.result(task, samples, ended_by=ended_by), samples)
        report = replace(
            result.report, stop_accuracy=level, reach=teacher.reach, own_share=teacher.own_share
        )
        return LocalResult(result.state, report)

    def _keep(self, weight: float | None) -> float:
        """Return how much a label keeps of what it has when the own state is taken back.

        Weighed: the heavier a leaver, the less the others had a part in its labels.
        """
        if self.labels == "weighed":
            return 1 - heaviness(weight)
        return float(self.labels == "own")

    def _within_ball(
        self, task: LocalTask, result: LocalResult, samples: Sequence[Batch]
    ) -> LocalResult:
        """Return the result, pulled into the ball and measured there if it lies outside."""
        report = replace(result.report, radius=self.radius)
        if self.radius is None or report.distance_to_reference <= self.radius:
            return LocalResult(result.state, report)
        movable = [n for n, p in task.model.named_parameters() if p.requires_grad]
        here, center = ({n: state[n] for n in movable} for state in (result.state, task.reference))
        state = {**result.state, **states.project(here, center, self.radius)}
        there = Descent.as_trained(task, state, learning_rate=None, momentum=None, clip=self.clip)
        measured = there.evaluate(samples, task.loss)
        return LocalResult(
            state,
            replace(
                report,
                projections=1,
                distance_to_reference=self.radius,
                distance_to_own=there.distance_to(task.own_state),
                accuracy=measured.accuracy,
                loss=measured.loss,
            ),
        )


def _descend(
    descent: Descent,
    teacher: Teacher,
    batches: Iterable[Batch],
    epoch: int,
    least: int,
    level: float,
) -> bool:
    """Take `least` steps, and on until labels that should go are at `level`; tell if they are."""
    window = max(1, epoch // WINDOWS)
    seen = _Count(descent.device)
    for number, (inputs, labels) in enumerate(batches, start=1):
        inputs, labels = inputs.to(descent.device), labels.to(descent.device)
        descent.step(inputs, labels, _objective(teacher(inputs, labels), seen))
        if number % window == 0:
            if number >= least and seen.share() <= level:
                return True
            seen = _Count(descent.device)
    return False


class _Count:
    """How much of the labels should go, and how much of that is still the answer; on the device."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(2, device=device)

    def add(self, own: Tensor, hits: Tensor) -> None:
        self._sums += torch.stack(((own * hits).sum(), own.sum()))

    def share(self) -> float:
        hits, own = self._sums.tolist()
        return hits / own if own else 0.0


def _objective(lesson: Lesson, seen: _Count) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the cross entropy with the lesson's target, which follows where the model stands."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            now = of_label(outputs.softmax(dim=1), labels)
            seen.add(lesson.lost(now), (outputs.argmax(dim=1) == labels).to(now.dtype))
            target = lesson.target(labels, now)
        return nn.functional.cross_entropy(outputs, target)

    return loss


def _passes(task: LocalTask, batch_size: int, numbers: Iterable[int]) -> Iterator[Batch]:
    for number in numbers:
        yield from task.batches(batch_size, number)
