"""Second choice: the leaver teaches the others' mean to answer as if it had never been there.

Which of its labels are its own doing it finds by going the other way: w_ref + k (w_ref - w_i) takes
its last state back k times over, k doubled until a tenth of its labels' probability has gone. Each
label is lowered to there, for good, and what it loses goes to the second choice, w_ref's answer
without it; all else is held. It trains as in a round until those labels are at chance. One upload,
no history, nothing to tune, fit for secure aggregation. Ours; it descends from FedQUIT.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import Batch
from secede.state import State
from secede.unlearning.descent import Descent, own_samples
from secede.unlearning.local import LocalResult, LocalTask
from secede.unlearning.method import LocalMethod, Recovered, Server, Start, average_round

WINDOWS = 8  # of an epoch; after each the leaver looks at its accuracy
FIRST_REACH, LAST_REACH = 2.0, 2.0**20


@dataclass(frozen=True, kw_only=True)
class SecondChoice(LocalMethod):
    """Distil the reference's answers, with the leaver's own labels lowered, until they are gone."""

    labels: Literal["own", "all"] = "own"  # which of them are lowered; all: to nothing
    share: float = 0.1  # of its labels' probability that must be its own; k is doubled until it is
    begin: Literal["reference", "global"] = "reference"
    level: float | None = None  # accuracy on those labels at which it stops; None: chance
    epochs: int = 5  # at most
    learning_rate: float | None = None  # None: as in the leaver's own training
    momentum: float | None = None
    batch_size: int | None = None
    clip: float = 5.0
    radius: float | None = None  # of an L2 ball around the reference; None: no ball
    hold: bool = False  # post-training may not go back towards the old model

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "batch_size", "clip", "radius"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be positive, got {value}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if not 0 < self.share < 1:
            raise ConfigError(f"share must be above 0 and below 1, got {self.share}")
        if self.level is not None and not 0 <= self.level < 1:
            raise ConfigError(f"level must be at least 0 and below 1, got {self.level}")

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return where the distillation ended: at chance, or after all its epochs."""
        usual = task.training
        batch_size = self.batch_size or usual.batch_size
        begin = task.reference if self.begin == "reference" else task.global_state
        descent = Descent(
            task.model,
            begin,
            learning_rate=self.learning_rate or usual.learning_rate,
            momentum=usual.momentum if self.momentum is None else self.momentum,
            clip=self.clip,
        )
        samples = own_samples(task, batch_size)
        classes = descent.evaluate(samples, task.loss).classes
        if classes is None or classes < 2:
            raise ConfigError(
                "second-choice needs a second class to choose: outputs of shape (n, classes) and "
                "integer labels of shape (n,)"
            )
        teacher = _Teacher(task.model, begin)
        if self.labels == "own":
            teacher.look_beyond(task.own_state, samples, self.share)
        level = 1 / classes if self.level is None else self.level
        passes = _passes(task, batch_size, self.epochs)
        ended_by = "epochs"
        if _descend(descent, teacher, passes, len(samples), level):
            ended_by = "chance" if self.level is None else "stop-accuracy"
        result = descent.result(task, samples, ended_by=ended_by)
        report = replace(
            result.report, stop_accuracy=level, reach=teacher.reach, own_share=teacher.own_share
        )
        return self._within_ball(task, LocalResult(result.state, report))

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Take a round of post-training; with `hold`, without its way back to the old model."""
        after = average_round(server, state, memory, number)
        if not memory:
            return after
        return replace(after, state=without_return(after.state, state, back=memory))

    def start(self, server: Server) -> Start:
        """Ask the leaver; with `hold`, remember the way back."""
        start = super().start(server)
        if not self.hold:
            return start
        movable = {n for n, p in server.fresh_model().named_parameters() if p.requires_grad}
        back = states.difference(server.global_state, start.state)
        return replace(start, memory={n: v for n, v in back.items() if n in movable})

    def _within_ball(self, task: LocalTask, result: LocalResult) -> LocalResult:
        report = replace(result.report, radius=self.radius)
        if self.radius is None or report.distance_to_reference <= self.radius:
            return LocalResult(result.state, report)
        state = states.project(result.state, task.reference, self.radius)
        return LocalResult(state, replace(report, projections=1))


class _Teacher:
    """What the leaver's samples should be answered, and which of their labels are its own."""

    def __init__(self, model: nn.Module, begin: State) -> None:
        self._near = _frozen(model, begin)
        self._far: nn.Module | None = None  # None: all labels are its own
        self.reach: float | None = None
        self.own_share = 1.0

    def look_beyond(self, own: State, samples: Sequence[Batch], share: float) -> None:
        """Take `own` back, twice as far each time, until `share` of the labels has gone."""
        near = states.live(self._near)
        own = states.without_aliases(own, self._near)
        states.check_schema(own, near)
        away = {n: near[n] - own[n] for n, p in self._near.named_parameters() if p.requires_grad}
        reach = FIRST_REACH
        while reach <= LAST_REACH:
            beyond = {n: v + reach * away[n] if n in away else v for n, v in near.items()}
            self._far = _frozen(self._near, beyond)
            found = self._share(samples)
            if found >= share:
                self.reach, self.own_share = reach, found
                return
            reach *= 2
        self._far = None  # it never got anywhere: the own state is where it began

    def _share(self, samples: Sequence[Batch]) -> float:
        device = next(self._near.parameters()).device
        total, count = torch.zeros((), dtype=torch.float64, device=device), 0
        for inputs, labels in samples:
            lesson = self(inputs.to(device), labels.to(device))
            total += lesson.own_share(lesson.known).double().sum()
            count += len(labels)
        return float(total) / count

    @torch.no_grad()
    def __call__(self, inputs: Tensor, labels: Tensor) -> _Lesson:
        near = self._near(inputs)
        known = of_label(near.softmax(dim=1), labels)
        kept = torch.zeros_like(known)
        if self._far is not None:
            # Far enough off a model may answer with numbers that are none: nothing is kept there.
            kept = of_label(self._far(inputs).softmax(dim=1), labels).nan_to_num(0.0)
        return _Lesson(second_choice(near, labels), known, kept)


@dataclass(frozen=True)
class _Lesson:
    """For a batch: the second choices, and the labels' probabilities at w_ref and beyond it."""

    second: Tensor
    known: Tensor
    kept: Tensor

    def target(self, labels: Tensor, now: Tensor) -> Tensor:
        """Lower each label to the least it has anywhere; `now` is where it stands already."""
        least = torch.minimum(torch.minimum(self.known, self.kept), now)
        return (self.second * (1 - least).unsqueeze(1)).scatter(
            1, labels.unsqueeze(1), least.unsqueeze(1)
        )

    def own_share(self, now: Tensor) -> Tensor:
        """Return how much of each label's probability is to go, or has gone, from 0 to 1."""
        least = torch.minimum(self.kept, now)
        return (1 - least / self.known.clamp(min=1e-12)).clamp(0, 1)


def _descend(
    descent: Descent, teacher: _Teacher, batches: Iterable[Batch], epoch: int, level: float
) -> bool:
    """Distil for an epoch, and on until labels that should go are at `level`; tell if they are."""
    window = max(1, epoch // WINDOWS)
    count = _Count(descent.device)
    for number, (inputs, labels) in enumerate(batches, start=1):
        inputs, labels = inputs.to(descent.device), labels.to(descent.device)
        descent.step(inputs, labels, _objective(teacher(inputs, labels), count))
        if number % window == 0:
            if number >= epoch and count.share() <= level:
                return True
            count = _Count(descent.device)
    return False


class _Count:
    """How many labels should go, and how many of them are still the answer; on the device."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(2, device=device)

    def add(self, own: Tensor, hits: Tensor) -> None:
        self._sums += torch.stack(((own * hits).sum(), own.sum()))

    def share(self) -> float:
        hits, own = self._sums.tolist()
        return hits / own if own else 0.0


def _objective(lesson: _Lesson, count: _Count) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the cross entropy with the lesson's target, which follows where the model stands."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            now = of_label(outputs.softmax(dim=1), labels)
            count.add(lesson.own_share(now), (outputs.argmax(dim=1) == labels).to(now.dtype))
            target = lesson.target(labels, now)
        return nn.functional.cross_entropy(outputs, target)

    return loss


def _frozen(model: nn.Module, state: State) -> nn.Module:
    twin = copy.deepcopy(model)
    states.load_into(twin, state)
    return twin.eval()


def of_label(values: Tensor, labels: Tensor) -> Tensor:
    """Return each row's entry at its label."""
    return values.gather(1, labels.unsqueeze(1)).squeeze(1)


def second_choice(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the softmax of `logits` with each row's own label left out."""
    return logits.scatter(1, labels.unsqueeze(1), -torch.inf).softmax(dim=1)


def without_return(after: State, before: State, *, back: State) -> dict[str, Tensor]:
    """Return `after` without the part of its step from `before` that points along `back`."""
    step = {name: after[name] - before[name] for name in back}
    share = max(0.0, states.inner(step, back) / states.inner(back, back))
    return {
        name: value - share * back[name] if name in back else value for name, value in after.items()
    }


def _passes(task: LocalTask, batch_size: int, epochs: int) -> Iterator[Batch]:
    for epoch in range(1, epochs + 1):
        yield from task.batches(batch_size, epoch)
