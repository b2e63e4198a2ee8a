"""Client tasks that a live engine can send: each has a name and JSON settings.

The simulator calls a task directly. A live engine sends its name and settings; the client creates
the task from them and never runs code from the wire. Other tasks, such as a function of your own,
run in the simulator only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from secede import state as states
from secede.errors import ConfigError, DataError
from secede.federation.engine import ClientSide
from secede.state import State
from secede.unlearning.method import (
    LocalMethod,
    LocalReport,
    LocalResult,
    LocalStepMethod,
    Reply,
    TakeStep,
)
from secede.unlearning.registry import METHODS, create
from secede.unlearning.steps import evaluate

BATCH_SIZE = 256
LOCAL_STEP, COUNT, MEASURE = "local-step", "count-right", "measure"
READ_CANARIES = "read-canaries"
BEFORE = "before"  # setting of a count: the digest of an earlier model to compare with
# The methods that need no other client tasks than these.
LOCAL = tuple(entry.name for entry in METHODS.values() if entry.runs_at == "leaver")
# Those that a client takes for a server: the others return the bare gradient, or no step at all.
ANSWERED = tuple(name for name in LOCAL if name not in ("gradient-ascent", "reference"))
LIVE = (*LOCAL, "weight-negation", "fine-tune", "retrain")
# Clients answer these methods in a form of the method's own, which nothing checks before it.
OWN_REPLY_MODULES = frozenset(
    f"secede.unlearning.methods.{entry.class_path[0]}"
    for name, entry in METHODS.items()
    if name not in LIVE
)

Numbers = Mapping[str, torch.dtype]  # entries and dtypes of a reply that is no model


@dataclass(frozen=True)
class CountRight:
    """Count samples and right predictions by class, and the changes since the model `before`.

    A live client is sent that model's digest alone: it must have counted with it already.
    """

    numbers: ClassVar[Numbers] = {"right": torch.int64, "samples": torch.int64}
    optional: ClassVar[Numbers] = {"lost": torch.int64, "gained": torch.int64}
    before: State | None = None

    def __call__(self, side: ClientSide) -> Reply:
        """Count with the global state."""
        before = None if self.before is None else predict(side, self.before).right
        return count(side, predict(side, side.global_state), before)


@dataclass(frozen=True)
class Predictions:
    """Which of a client's samples a model predicts right; outputs that are not finite are wrong."""

    right: Tensor
    labels: Tensor
    classes: int


@torch.inference_mode()
def predict(side: ClientSide, state: State) -> Predictions:
    """Let a model predict each of a client's samples, always in the same order."""
    model = side.fresh_model(0)
    states.load_into(model, state)
    model.eval()
    device = next(iter(states.live(model).values())).device
    right, every, classes = list[Tensor](), list[Tensor](), 0
    for inputs, labels in side.batches(BATCH_SIZE, 0):
        outputs, labels = model(inputs.to(device)), labels.to(device)
        if outputs.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
            raise ConfigError(
                "the gate counts right predictions: expected outputs of shape (n, classes) and "
                "integer labels of shape (n,)"
            )
        right.append((outputs.argmax(dim=1) == labels) & outputs.isfinite().all(dim=1))
        every.append(labels)
        classes = outputs.shape[1]
    labels = torch.cat(every).cpu()
    if classes < 2 or int(labels.max()) >= classes:
        raise DataError(
            f"the gate counts right predictions by class: labels run to {int(labels.max())}, and "
            f"the network has {classes} outputs"
        )
    return Predictions(torch.cat(right).cpu(), labels, classes)


def count(side: ClientSide, now: Predictions, before: Tensor | None) -> Reply:
    """Return the counts of predictions by class; `before` has those of an earlier model."""
    chosen = {"right": now.right, "samples": torch.ones_like(now.right)}
    if before is not None and len(before) == len(now.right):
        chosen |= {"lost": before & ~now.right, "gained": now.right & ~before}
    counts = {
        name: torch.bincount(now.labels[mask], minlength=now.classes)
        for name, mask in chosen.items()
    }
    return Reply(state=counts, gradient_samples=0, samples=side.samples)


@dataclass(frozen=True)
class Measure:
    """Measure the mean loss, and the accuracy if labels are classes (else NaN)."""

    numbers: ClassVar[Numbers] = {"loss": torch.float64, "accuracy": torch.float64}
    optional: ClassVar[Numbers] = {}

    def __call__(self, side: ClientSide) -> Reply:
        """Measure with the global state."""
        model = side.fresh_model(0)
        states.load_into(model, side.global_state)
        device = next(iter(states.live(model).values())).device
        evaluation = evaluate(model, side.batches(BATCH_SIZE, 0), loss=side.loss, device=device)
        accuracy = float("nan") if evaluation.accuracy is None else evaluation.accuracy
        numbers = {
            "loss": torch.tensor([evaluation.loss], dtype=torch.float64),
            "accuracy": torch.tensor([accuracy], dtype=torch.float64),
        }
        return Reply(state=numbers, gradient_samples=0, samples=side.samples)


@dataclass(frozen=True)
class ReadCanaries:
    """Read the client's canaries in the global state: a live client has them, and no other."""

    def __call__(self, side: ClientSide) -> Reply:
        """Refuse: the simulator's canaries are not the client side's."""
        raise ConfigError("canaries are read by live clients alone")


Task = TakeStep | CountRight | Measure | ReadCanaries


@dataclass(frozen=True)
class TaskMessage:
    """A task as a live engine sends it; `settings` are those of `create`."""

    name: str
    method: str  # of a local step; "" for other tasks
    settings: Mapping[str, Any]


def to_message(task: object) -> TaskMessage:
    """Return the message for `task`; raise if it cannot be sent."""
    if isinstance(task, CountRight):
        earlier = {} if task.before is None else {BEFORE: states.digest(task.before)}
        return TaskMessage(COUNT, "", earlier)
    if isinstance(task, Measure):
        return TaskMessage(MEASURE, "", {})
    if isinstance(task, ReadCanaries):
        return TaskMessage(READ_CANARIES, "", {})
    step = task.step if isinstance(task, TakeStep) else task
    step = step.step if isinstance(step, LocalStepMethod) else step
    step_type = type(step)
    for name, entry in METHODS.items():
        module, attribute = entry.class_path
        if isinstance(task, TakeStep) and name in LOCAL and step_type.__name__ == attribute:
            if step_type.__module__ != f"secede.unlearning.methods.{module}":
                continue
            settings = TypeAdapter(step_type).dump_python(step, mode="json")
            return TaskMessage(LOCAL_STEP, name, cast("dict[str, Any]", settings))
    raise ConfigError(
        f"{step_type.__name__} cannot be sent to a live client, which runs secede's own tasks "
        f"only; methods that work live: {', '.join(LIVE)}"
    )


def from_message(message: TaskMessage, *, allowed: Collection[str] = LOCAL) -> Task:
    """Return the task that `message` names; raise if its method is not `allowed`."""
    if message.name == COUNT:
        return CountRight()
    if message.name == MEASURE:
        return Measure()
    if message.name == READ_CANARIES:
        return ReadCanaries()
    if message.name != LOCAL_STEP:
        known = ", ".join((LOCAL_STEP, COUNT, MEASURE, READ_CANARIES))
        raise ConfigError(f"unknown task {message.name[:40]!r}, expected one of {known}")
    if message.method not in allowed or message.method not in LOCAL:
        raise ConfigError(
            f"method {message.method[:40]!r} is not allowed here, expected one of "
            f"{', '.join(allowed)}"
        )
    _, method = create(message.method, message.settings)
    return TakeStep(cast("LocalMethod", method))


def parse_result(state: states.State, report: Mapping[str, Any]) -> LocalResult:
    """Return a local step's result from a state and a report over the wire."""
    try:
        return LocalResult(state, TypeAdapter(LocalReport).validate_python(dict(report)))
    except ValidationError as error:
        raise ConfigError(
            f"the report has {error.error_count()} wrong entries, expected a LocalReport"
        ) from None
