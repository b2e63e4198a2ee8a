"""Projected gradient ascent: the leaver climbs its own loss inside a ball around the others' mean.

Halimi et al. 2022, Algorithm 1. The ascent starts at the retained clients' mean, is projected into
a ball of `radius` after each step, and stops early. The inequality of the early stop is reversed:
as printed ("below") it would stop at the first step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from secede.errors import ConfigError
from secede.federation.engine import Batch
from secede.unlearning.method import Candidate, LocalReport, LocalResult, LocalTask
from secede.unlearning.post_training_hold import PostTrainingHold
from secede.unlearning.steps import (
    AnchorState,
    Ascent,
    AscentBounds,
    Evaluation,
    check_batch,
    third_of_distance_to_fresh,
)
from secede.unlearning.steps import stop_distance as tau


@dataclass(frozen=True, kw_only=True)
class ProjectedAscent(PostTrainingHold):
    """Loss ascent kept inside an L2 ball around the reference; defaults are the paper's."""

    radius: float | None = None  # plain L2; None: a third of the mean distance to fresh models
    stop: Literal["distance", "accuracy", "loss"] = "distance"
    stop_distance: float | None = None  # tau, plain L2 from the own state; None: grid search
    stop_accuracy: float | None = None  # None: chance, one in the number of classes
    learning_rate: float = 0.01
    momentum: float = 0.9
    batch_size: int = 1024
    epochs: int = 5
    clip: float = 5.0

    def __post_init__(self) -> None:
        for name in ("radius", "stop_distance", "learning_rate", "batch_size", "epochs", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be positive, got {value}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if self.stop_accuracy is not None and not 0 <= self.stop_accuracy <= 1:
            raise ConfigError(f"stop_accuracy must be within 0 and 1, got {self.stop_accuracy}")
        self.check_hold()
        if self.stop not in ("distance", "accuracy", "loss"):
            raise ConfigError(f"stop must be 'distance', 'accuracy' or 'loss', got {self.stop!r}")
        for rule in ("distance", "accuracy"):
            value = getattr(self, f"stop_{rule}")
            if value is not None and self.stop != rule:
                raise ConfigError(
                    f"stop_{rule} is {value}, but only stop = '{rule}' takes it "
                    f"(stop is {self.stop!r})"
                )

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return the state that post-training starts from, and what ended the ascent."""
        return self._unlearn(task)

    def _unlearn(self, task: LocalTask, *, block_size: int | None = None) -> LocalResult:
        """Unlearn in blocks of `block_size` steps; None: the device's default."""
        ascent = _AscentRun(self, task, block_size)
        if self.stop == "accuracy":
            return ascent.until_accuracy(self.stop_accuracy)
        if self.stop == "loss":
            return ascent.until_chance_loss()
        if self.stop_distance is not None:
            return ascent.until_distance(self.stop_distance)
        return ascent.search()


class _AscentRun:
    """One ascent: the model, its bounds, its batches and the number of projections."""

    def __init__(self, settings: ProjectedAscent, task: LocalTask, block_size: int | None) -> None:
        self._ascent = Ascent(
            task.model,
            task.reference,
            loss=task.loss,
            learning_rate=settings.learning_rate,
            momentum=settings.momentum,
            clip=settings.clip,
            block_size=block_size,
        )
        self._bounds = AscentBounds(
            center=AnchorState(self._ascent, task.reference),
            radius=settings.radius
            or third_of_distance_to_fresh(
                task.reference, task.fresh_model, self._ascent.trainable_names
            ),
            own=AnchorState(self._ascent, task.own_state),
        )
        self._projections = 0
        self._labels_fit = False
        # Read once, before the ascent: a loader in the middle of a pass, and torch's global
        # generator, stay as they are.
        with torch.random.fork_rng(devices=()):
            self._samples = [check_batch(batch) for batch in task.batches(settings.batch_size, 0)]
        self._batches = _BatchQueue(
            batch
            for epoch in range(1, settings.epochs + 1)
            for batch in task.batches(settings.batch_size, epoch)
        )

    def until_distance(self, stop_distance: float) -> LocalResult:
        """Stop at the first step beyond `stop_distance` from the leaver's own last state."""
        self._evaluate()  # raises before the ascent if samples do not fit the model
        stopped = self._ascend_beyond(stop_distance) is not None
        return self._result("stop-distance" if stopped else "epochs", stop_distance=stop_distance)

    def until_accuracy(self, level: float | None) -> LocalResult:
        """Stop when the leaver's accuracy on its own samples is at most `level`."""
        _, classes = self._measured(self._evaluate())
        level = 1 / classes if level is None else level
        reached = self._ascend_until(lambda evaluation: self._measured(evaluation)[0] <= level)
        return self._result("stop-accuracy" if reached else "epochs", stop_accuracy=level)

    def until_chance_loss(self) -> LocalResult:
        """Stop when the leaver's loss is that of guessing: no tau, and no step beyond chance."""
        _, classes = self._measured(self._evaluate())
        reached = self._ascend_until(lambda evaluation: evaluation.loss >= math.log(classes))
        return self._result("stop-loss" if reached else "epochs")

    def search(self) -> LocalResult:
        """Climb past every tau of the grid, keep the result at each, and choose one."""
        accuracy, classes = self._measured(self._evaluate())
        target = tau.target_accuracy(accuracy, classes)
        pending = list(tau.grid_ahead(self._ascent.distance(self._bounds.own)))
        candidates, results = list[Candidate](), list[LocalResult]()
        while pending and (distance := self._ascend_beyond(pending[0])) is not None:
            while pending and distance > pending[0]:
                result = self._result("stop-distance", stop_distance=pending[0])
                measured = result.report.accuracy or 0.0
                candidates.append(Candidate(pending.pop(0), result.report.steps, measured))
                results.append(result)
        chosen = tau.choose(candidates, target)
        if chosen is not None:
            result = results[chosen]
        elif pending:
            result = self._result("epochs")  # they ended before the grid and before the target
        else:
            result = results[-1]
        report = replace(
            result.report,
            searched=tuple(candidates),
            search_target=target,
            gradient_samples=self._ascent.gradient_samples,  # of the whole ascent
        )
        return LocalResult(result.state, report)

    def _ascend_until(self, reached: Callable[[Evaluation], bool]) -> bool:
        """Ascend step by step until `reached` holds on the samples; return whether it did."""
        while batches := self._batches.take(1):
            self._ascent.ascend(batches[0])
            self._projections += self._ascent.project(self._bounds.center, self._bounds.radius)
            if reached(self._evaluate()):
                return True
        return False

    def _ascend_beyond(self, stop_distance: float) -> float | None:
        """Return the first distance beyond `stop_distance`, or None if the batches ended before."""
        while batches := self._batches.take(self._ascent.block_size):
            block = self._ascent.run_block(batches, self._bounds, stop_distance)
            self._projections += block.projections
            self._batches.put_back(batches[block.steps :])
            if block.distance > stop_distance:
                return block.distance
        return None

    def _evaluate(self) -> Evaluation:
        evaluation = self._ascent.evaluate(self._samples, labels_fit=self._labels_fit)
        self._labels_fit = True
        return evaluation

    @staticmethod
    def _measured(evaluation: Evaluation) -> tuple[float, int]:
        if evaluation.accuracy is None or evaluation.classes is None:
            raise ConfigError(
                "projected-ascent cannot measure accuracy: expected outputs of shape (n, classes) "
                "and integer labels of shape (n,); give stop_distance instead"
            )
        return evaluation.accuracy, evaluation.classes

    def _result(
        self,
        ended_by: str,
        *,
        stop_distance: float | None = None,
        stop_accuracy: float | None = None,
    ) -> LocalResult:
        evaluation = self._evaluate()
        report = LocalReport(
            steps=self._ascent.steps,
            ended_by=ended_by,
            distance_to_own=self._ascent.distance(self._bounds.own),
            distance_to_reference=self._ascent.distance(self._bounds.center),
            radius=self._bounds.radius,
            stop_distance=stop_distance,
            stop_accuracy=stop_accuracy,
            projections=self._projections,
            accuracy=evaluation.accuracy,
            loss=evaluation.loss,
            gradient_samples=self._ascent.gradient_samples,
        )
        return LocalResult(self._ascent.state(), report)


class _BatchQueue:
    """The ascent's batches in order; batches that were not used come again."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._source = batches
        self._returned = deque[Batch]()

    def take(self, count: int) -> list[Batch]:
        """Return the next `count` batches, or fewer at the end."""
        while len(self._returned) < count and (batch := next(self._source, None)) is not None:
            self._returned.append(batch)
        return [self._returned.popleft() for _ in range(min(count, len(self._returned)))]

    def put_back(self, batches: list[Batch]) -> None:
        """Put back unused batches; they come next."""
        self._returned.extendleft(reversed(batches))
