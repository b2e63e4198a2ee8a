"""Second choice: the leaver teaches the others' mean to answer as if it had never been there.

Which of its labels are its own doing it finds by going the other way: w_ref + k (w_ref - w_i) takes
its last state back k times over, k doubled until a tenth of its labels' probability has gone. Each
label is lowered to there; what it loses goes to the second choice, w_ref's answer without it. What
has fallen on the way never rises again, so forgetting spreads to labels that rest on the same. It
trains as in a round until those are at chance. One upload, no history. Descends from FedQUIT.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError, StateError
from secede.federation.engine import Batch
from secede.state import State
from secede.unlearning import evaluation
from secede.unlearning.descent import Descent, own_samples
from secede.unlearning.evaluation import Evaluation
from secede.unlearning.local import LocalResult, LocalTask
from secede.unlearning.method import LocalMethod, Recovered, Server, Start, average_round

WINDOWS = 8  # of an epoch; after each the leaver looks at its accuracy
REACHES = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # how many times over the own state is taken back


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
        level = 1 / classes if self.level is None else self.level
        passes = _passes(task, batch_size, self.epochs)
        if self.labels == "own" and not teacher.look_beyond(task.own_state, samples, self.share):
            ended_by = "nothing-own"
        elif _descend(descent, teacher, passes, len(samples), level):
            ended_by = "chance" if self.level is None else "stop-accuracy"
        else:
            ended_by = "epochs"
        result = self._within_ball(task, descent.result(task, samples, ended_by=ended_by), samples)
        report = replace(
            result.report, stop_accuracy=level, reach=teacher.reach, own_share=teacher.own_share
        )
        return LocalResult(result.state, report)

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
        measured = evaluate(task, state, samples)
        return LocalResult(
            state,
            replace(
                report,
                projections=1,
                distance_to_reference=self.radius,
                distance_to_own=states.distance(
                    {n: state[n] for n in movable}, {n: task.own_state[n] for n in movable}
                ),
                accuracy=measured.accuracy,
                loss=measured.loss,
            ),
        )


class _Teacher:
    """What the leaver's samples should be answered, and which of their labels are its own."""

    def __init__(self, model: nn.Module, begin: State) -> None:
        self._near = _frozen(model, begin)
        self._far: nn.Module | None = None  # None: all labels are its own
        self.reach: float | None = None
        self.own_share = 1.0

    def look_beyond(self, own: State, samples: Sequence[Batch], share: float) -> bool:
        """Take `own` back, twice as far each time, until `share` of the labels has gone.

        False if that did not happen within reason: then nothing is its own.
        """
        near = states.live(self._near)
        own = states.without_aliases(own, self._near)
        states.check_schema(own, near)
        away = {n: near[n] - own[n] for n, p in self._near.named_parameters() if p.requires_grad}
        if not any(bool(value.any()) for value in away.values()):
            raise StateError(
                "second-choice: the leaver's own state is the one it starts from, so it cannot "
                "tell which labels are its own: give the state it last sent, or labels = 'all'"
            )
        for reach in REACHES:
            beyond = {n: v + reach * away[n] if n in away else v for n, v in near.items()}
            far, before = _frozen(self._near, beyond), self._far
            self._far = far
            found = self._share(samples)
            if math.isnan(found):  # too far: the network's numbers end there
                self._far = before
                return False
            self.reach, self.own_share = reach, found
            if found >= share:
                return True
        return False

    def _share(self, samples: Sequence[Batch]) -> float:
        device = next(self._near.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        for inputs, labels in samples:
            lesson = self(inputs.to(device), labels.to(device))
            sums += torch.stack((lesson.lost().double().sum(), lesson.known.double().sum()))
        lost, known = sums.tolist()
        return float(lost / known) if known else 0.0

    @torch.no_grad()
    def __call__(self, inputs: Tensor, labels: Tensor) -> _Lesson:
        near = self._near(inputs)
        known = of_label(near.softmax(dim=1), labels)
        kept = torch.zeros_like(known)
        if self._far is not None:
            kept = of_label(self._far(inputs).softmax(dim=1), labels)
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

    def lost(self, now: Tensor | None = None) -> Tensor:
        """Return how much probability each label loses on the way, or has lost by `now`."""
        least = self.kept if now is None else torch.minimum(self.kept, now)
        return (self.known - least).clamp(min=0)


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
    """How much of the labels should go, and how much of that is still the answer; on the device."""

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
            count.add(lesson.lost(now), (outputs.argmax(dim=1) == labels).to(now.dtype))
            target = lesson.target(labels, now)
        return nn.functional.cross_entropy(outputs, target)

    return loss


def evaluate(task: LocalTask, state: State, samples: Sequence[Batch]) -> Evaluation:
    """Measure a state on the leaver's samples."""
    states.load_into(task.model, state)
    device = next(task.model.parameters()).device
    return evaluation.evaluate(task.model, samples, loss=task.loss, device=device)


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
    length = states.inner(back, back)
    if not length:
        return dict(after)  # nothing was done, so nothing can be undone
    step = {name: after[name] - before[name] for name in back}
    share = max(0.0, states.inner(step, back) / length)
    return {
        name: value - share * back[name] if name in back else value for name, value in after.items()
    }


def _passes(task: LocalTask, batch_size: int, epochs: int) -> Iterator[Batch]:
    for epoch in range(1, epochs + 1):
        yield from task.batches(batch_size, epoch)
