"""Projected ascent as one would first write it, step by step: the oracle of the fast one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import StateError
from secede.unlearning.method import Candidate, LocalReport, LocalResult, LocalTask
from secede.unlearning.methods.projected_ascent import ProjectedAscent
from secede.unlearning.steps import stop_distance as tau


class PlainClimb:
    """torch's own clipping and SGD, and the projection and the distance of `states`."""

    def __init__(self, how: ProjectedAscent, task: LocalTask) -> None:
        assert how.radius is not None
        self.how, self.task, self.radius, self.model = how, task, how.radius, task.model
        states.load_into(self.model, task.reference)
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.optimiser = torch.optim.SGD(
            self.parameters.values(), lr=how.learning_rate, momentum=how.momentum, maximize=True
        )
        self.samples = list(task.batches(how.batch_size, 0))
        self.steps, self.projections, self.gradient_samples = 0, 0, 0

    def unlearn(self) -> LocalResult:
        if self.how.stop == "accuracy":
            return self.until_accuracy()
        if self.how.stop_distance is not None:
            return self.until_distance(self.how.stop_distance)
        return self.search()

    def until_distance(self, stop_distance: float) -> LocalResult:
        for distance in self.distances():
            if distance > stop_distance:
                return self.result("stop-distance", stop_distance=stop_distance)
        return self.result("epochs", stop_distance=stop_distance)

    def until_accuracy(self) -> LocalResult:
        assert self.how.stop_accuracy is not None
        level = self.how.stop_accuracy
        for _ in self.distances():
            if self.evaluate()[1] <= level:
                return self.result("stop-accuracy", stop_accuracy=level)
        return self.result("epochs", stop_accuracy=level)

    def search(self) -> LocalResult:
        _, accuracy, classes = self.evaluate()
        target = tau.target_accuracy(accuracy, classes)
        pending = list(tau.grid_ahead(self.distance(self.task.own_state)))
        candidates, results = list[Candidate](), list[LocalResult]()
        for distance in self.distances():
            while pending and distance > pending[0]:
                results.append(self.result("stop-distance", stop_distance=pending[0]))
                candidates.append(Candidate(pending.pop(0), self.steps, self.evaluate()[1]))
            if not pending:
                break
        chosen = tau.choose(candidates, target)
        if chosen is not None:
            result = results[chosen]
        else:
            result = self.result("epochs") if pending else results[-1]
        report = replace(
            result.report,
            searched=tuple(candidates),
            search_target=target,
            gradient_samples=self.gradient_samples,
        )
        return LocalResult(result.state, report)

    def distances(self) -> Iterator[float]:
        """Take step after step and yield the distance to the own state after each."""
        for epoch in range(1, self.how.epochs + 1):
            for inputs, labels in self.task.batches(self.how.batch_size, epoch):
                self.ascend(inputs, labels)
                self.project()
                yield self.distance(self.task.own_state)

    def ascend(self, inputs: Tensor, labels: Tensor) -> None:
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.eval()
        self.optimiser.zero_grad()
        self.task.loss(self.model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(self.parameters.values(), self.how.clip)
        self.optimiser.step()
        self.steps += 1
        self.gradient_samples += len(labels)

    def project(self) -> None:
        if self.distance(self.task.reference) <= self.radius:
            return
        self.projections += 1
        center = {name: self.task.reference[name] for name in self.parameters}
        projected = states.project(self.here(), center, self.radius)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(projected[name])

    def here(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.parameters.items()}

    def distance(self, state: states.State) -> float:
        found = states.distance(self.here(), {name: state[name] for name in self.parameters})
        if not math.isfinite(found):
            raise StateError(f"the ascent gave values that are not finite at step {self.steps}")
        return found

    def evaluate(self) -> tuple[float, float, int]:
        """Return mean loss, accuracy and the number of classes."""
        self.model.eval()
        total, right, count, classes = 0.0, 0, 0, 0
        with torch.no_grad():
            for inputs, labels in self.samples:
                outputs = self.model(inputs)
                total += float(self.task.loss(outputs, labels)) * len(labels)
                right += int((outputs.argmax(dim=1) == labels).sum())
                count, classes = count + len(labels), outputs.shape[1]
        return total / count, right / count, classes

    def result(
        self,
        ended_by: str,
        *,
        stop_distance: float | None = None,
        stop_accuracy: float | None = None,
    ) -> LocalResult:
        loss, accuracy, _ = self.evaluate()
        report = LocalReport(
            steps=self.steps,
            ended_by=ended_by,
            distance_to_own=self.distance(self.task.own_state),
            distance_to_reference=self.distance(self.task.reference),
            radius=self.radius,
            stop_distance=stop_distance,
            stop_accuracy=stop_accuracy,
            projections=self.projections,
            accuracy=accuracy,
            loss=loss,
            gradient_samples=self.gradient_samples,
        )
        return LocalResult(states.of(self.model), report)
