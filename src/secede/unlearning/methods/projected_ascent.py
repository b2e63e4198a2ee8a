"""Projected gradient ascent: the leaver forgets on its own premises.

It climbs its own loss from the retained clients' mean, is pulled back whenever it strays further
than `radius`, and stops early. Halimi et al. 2022, Algorithm 1, with the inequality of the early
stop turned round: printed as "below", it would fire on the first step.
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
from secede.unlearning.local_step import Candidate, LocalReport, LocalResult, LocalTask
from secede.unlearning.post_training_hold import Holding
from secede.unlearning.steps import stop_distance as tau
from secede.unlearning.steps.ascent import Anchor, Ascent, Course
from secede.unlearning.steps.leaver_metrics import Evaluation, checked
from secede.unlearning.steps.radius import third_of_distance_to_fresh


@dataclass(frozen=True, kw_only=True)
class ProjectedAscent(Holding):
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
        """Return the state that post-training starts from, and what ended the climb."""
        return self._unlearn(task)

    def _unlearn(self, task: LocalTask, *, block: int | None = None) -> LocalResult:
        """Do the same in blocks of `block` steps; None leaves their size to the device."""
        climb = _Climb(self, task, block)
        if self.stop == "accuracy":
            return climb.until_accuracy(self.stop_accuracy)
        if self.stop == "loss":
            return climb.until_chance_loss()
        if self.stop_distance is not None:
            return climb.until_distance(self.stop_distance)
        return climb.search()


class _Climb:
    """One ascent in progress: the walker, its course and what was counted on the way."""

    def __init__(self, how: ProjectedAscent, task: LocalTask, block: int | None) -> None:
        self._walker = Ascent(
            task.model,
            task.reference,
            loss=task.loss,
            learning_rate=how.learning_rate,
            momentum=how.momentum,
            clip=how.clip,
            block=block,
        )
        self._course = Course(
            center=Anchor(self._walker, task.reference),
            radius=how.radius
            or third_of_distance_to_fresh(task.reference, task.fresh_model, self._walker.movable),
            own=Anchor(self._walker, task.own_state),
        )
        self._projections = 0
        self._labels_fit = False
        # Read once and before the climb, so that measuring cannot disturb a loader in the middle
        # of a pass, nor torch's global generator.
        with torch.random.fork_rng(devices=()):
            self._samples = [checked(batch) for batch in task.batches(how.batch_size, 0)]
        self._batches = _Supply(
            batch
            for epoch in range(1, how.epochs + 1)
            for batch in task.batches(how.batch_size, epoch)
        )

    def until_distance(self, stop_distance: float) -> LocalResult:
        """Stop once further than `stop_distance` from the leaver's own last state."""
        self._evaluate()  # samples that do not fit the model are refused before the climb
        stopped = self._climb_past(stop_distance) is not None
        return self._result("stop-distance" if stopped else "epochs", stop_distance=stop_distance)

    def until_accuracy(self, level: float | None) -> LocalResult:
        """Stop once the leaver's accuracy on its own samples is at `level` or below."""
        _, classes = self._measured(self._evaluate())
        level = 1 / classes if level is None else level
        reached = self._climb_until(lambda found: self._measured(found)[0] <= level)
        return self._result("stop-accuracy" if reached else "epochs", stop_accuracy=level)

    def until_chance_loss(self) -> LocalResult:
        """Stop once the leaver's loss is that of guessing: no tau, and no way past chance."""
        _, classes = self._measured(self._evaluate())
        reached = self._climb_until(lambda found: found.loss >= math.log(classes))
        return self._result("stop-loss" if reached else "epochs")

    def search(self) -> LocalResult:
        """Climb past every tau of the grid, keep the state at each, and choose one."""
        accuracy, classes = self._measured(self._evaluate())
        target = tau.target_accuracy(accuracy, classes)
        pending = list(tau.grid_ahead(self._walker.distance(self._course.own)))
        candidates, results = list[Candidate](), list[LocalResult]()
        while pending and (distance := self._climb_past(pending[0])) is not None:
            while pending and distance > pending[0]:
                result = self._result("stop-distance", stop_distance=pending[0])
                measured = result.report.accuracy or 0.0
                candidates.append(Candidate(pending.pop(0), result.report.steps, measured))
                results.append(result)
        chosen = tau.choose(candidates, target)
        if chosen is not None:
            result = results[chosen]
        elif pending:
            result = self._result("epochs")  # the epochs ended before the grid and the target
        else:
            result = results[-1]
        report = replace(
            result.report,
            searched=tuple(candidates),
            search_target=target,
            gradient_samples=self._walker.gradient_samples,  # the whole climb was paid for
        )
        return LocalResult(result.state, report)

    def _climb_until(self, enough: Callable[[Evaluation], bool]) -> bool:
        """Climb step by step until the leaver's samples show `enough`; tell if they did."""
        while batches := self._batches.take(1):
            self._walker.ascend(batches[0])
            self._projections += self._walker.project(self._course.center, self._course.radius)
            if enough(self._evaluate()):
                return True
        return False

    def _climb_past(self, threshold: float) -> float | None:
        """Return the first distance beyond `threshold`, or None if the batches ended before."""
        while batches := self._batches.take(self._walker.block):
            stretch = self._walker.climb(batches, self._course, threshold)
            self._projections += stretch.projections
            self._batches.put_back(batches[stretch.steps :])
            if stretch.distance > threshold:
                return stretch.distance
        return None

    def _evaluate(self) -> Evaluation:
        evaluation = self._walker.evaluate(self._samples, labels_fit=self._labels_fit)
        self._labels_fit = True
        return evaluation

    @staticmethod
    def _measured(evaluation: Evaluation) -> tuple[float, int]:
        if evaluation.accuracy is None or evaluation.classes is None:
            raise ConfigError(
                "accuracy cannot be measured: it needs outputs of shape (n, classes) and integer "
                "labels of shape (n,); give stop_distance instead"
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
            steps=self._walker.steps,
            ended_by=ended_by,
            distance_to_own=self._walker.distance(self._course.own),
            distance_to_reference=self._walker.distance(self._course.center),
            radius=self._course.radius,
            stop_distance=stop_distance,
            stop_accuracy=stop_accuracy,
            projections=self._projections,
            accuracy=evaluation.accuracy,
            loss=evaluation.loss,
            gradient_samples=self._walker.gradient_samples,
        )
        return LocalResult(self._walker.state(), report)


class _Supply:
    """The climb's batches in their order, some of them pulled ahead of their step."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._coming = batches
        self._held = deque[Batch]()

    def take(self, count: int) -> list[Batch]:
        """Return the next `count` batches, or fewer where no more come."""
        while len(self._held) < count and (batch := next(self._coming, None)) is not None:
            self._held.append(batch)
        return [self._held.popleft() for _ in range(min(count, len(self._held)))]

    def put_back(self, batches: list[Batch]) -> None:
        """Take back what was not used; it comes next."""
        self._held.extendleft(reversed(batches))
