"""Tasks that can travel: each is a value with a name and JSON settings, callable at a client.

The simulator just calls them. A live engine sends name and settings, the client makes the task
again from them and never runs code that came over the wire. A task with neither, such as a
function of one's own, runs in the simulator alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import ClientSide
from secede.unlearning.create import create
from secede.unlearning.local_step import LocalReport, LocalResult
from secede.unlearning.method import AtLeaver, LocalMethod, Reply, TakeStep
from secede.unlearning.registry import METHODS
from secede.unlearning.steps.leaver_metrics import evaluate

BATCH = 256
LOCAL_STEP, COUNT, MEASURE = "local-step", "count-right", "measure"
# They ask clients for nothing but rounds and tasks that travel.
LOCAL = tuple(entry.name for entry in METHODS.values() if entry.runs_at == "leaver")
LIVE = (*LOCAL, "weight-negation", "fine-tune", "retrain")

Numbers = Mapping[str, torch.dtype]  # the entries of a reply that is no model, and their kinds


@dataclass(frozen=True)
class CountRight:
    """Count samples, and right answers, by class; answers that are not finite are wrong."""

    numbers: ClassVar[Numbers] = {"right": torch.int64, "samples": torch.int64}

    @torch.inference_mode()
    def __call__(self, side: ClientSide) -> Reply:
        """Count with the global state."""
        model = side.fresh_model(0)
        states.load_into(model, side.global_state)
        model.eval()
        device = next(iter(states.live(model).values())).device
        right, samples = list[Tensor](), list[Tensor]()
        for inputs, labels in side.batches(BATCH, 0):
            outputs, labels = model(inputs.to(device)), labels.to(device)
            if outputs.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
                raise ConfigError("the gate counts right answers: it needs labels that are classes")
            hits = (outputs.argmax(dim=1) == labels) & outputs.isfinite().all(dim=1)
            right.append(torch.bincount(labels[hits], minlength=outputs.shape[1]))
            samples.append(torch.bincount(labels, minlength=outputs.shape[1]))
        counted = {
            "right": torch.stack(right).sum(dim=0).cpu(),
            "samples": torch.stack(samples).sum(dim=0).cpu(),
        }
        return Reply(state=counted, gradient_samples=0, samples=side.samples)


@dataclass(frozen=True)
class Measure:
    """Measure the mean loss, and the accuracy where labels are classes (NaN where not)."""

    numbers: ClassVar[Numbers] = {"loss": torch.float64, "accuracy": torch.float64}

    def __call__(self, side: ClientSide) -> Reply:
        """Measure with the global state."""
        model = side.fresh_model(0)
        states.load_into(model, side.global_state)
        device = next(iter(states.live(model).values())).device
        found = evaluate(model, side.batches(BATCH, 0), loss=side.loss, device=device)
        accuracy = float("nan") if found.accuracy is None else found.accuracy
        measured = {
            "loss": torch.tensor([found.loss], dtype=torch.float64),
            "accuracy": torch.tensor([accuracy], dtype=torch.float64),
        }
        return Reply(state=measured, gradient_samples=0, samples=side.samples)


Task = TakeStep | CountRight | Measure


@dataclass(frozen=True)
class Sent:
    """A task as it travels; settings are what `create` takes."""

    name: str
    method: str  # of a local step, "" for others
    settings: Mapping[str, Any]


def sent(task: object) -> Sent:
    """Return the form in which `task` travels; what cannot travel is refused."""
    if isinstance(task, CountRight):
        return Sent(COUNT, "", {})
    if isinstance(task, Measure):
        return Sent(MEASURE, "", {})
    step = task.step if isinstance(task, TakeStep) else task
    step = step.step if isinstance(step, AtLeaver) else step
    kind = type(step)
    for name, entry in METHODS.items():
        module, _, attribute = entry.made_by.partition(":")
        if isinstance(task, TakeStep) and name in LOCAL and kind.__name__ == attribute:
            if kind.__module__ != f"secede.unlearning.methods.{module}":
                continue
            settings = TypeAdapter(kind).dump_python(step, mode="json")
            return Sent(LOCAL_STEP, name, cast("dict[str, Any]", settings))
    raise ConfigError(
        f"{kind.__name__} cannot be sent to a live client, which runs none but secede's own "
        f"tasks; methods that work live: {', '.join(LIVE)}"
    )


def received(form: Sent, *, allowed: Collection[str] = LOCAL) -> Task:
    """Return the task that `form` names; a method that is not in `allowed` is refused."""
    if form.name == COUNT:
        return CountRight()
    if form.name == MEASURE:
        return Measure()
    if form.name != LOCAL_STEP:
        raise ConfigError(
            f"unknown task {form.name[:40]!r}, expected one of {LOCAL_STEP}, {COUNT}, {MEASURE}"
        )
    if form.method not in allowed or form.method not in LOCAL:
        raise ConfigError(
            f"method {form.method[:40]!r} is not allowed here, expected one of {', '.join(allowed)}"
        )
    _, method = create(form.method, form.settings)
    return TakeStep(cast("LocalMethod", method))


def result_of(state: states.State, report: Mapping[str, Any]) -> LocalResult:
    """Return a local step's result from a report that came over the wire."""
    try:
        return LocalResult(state, TypeAdapter(LocalReport).validate_python(dict(report)))
    except ValidationError as error:
        raise ConfigError(
            f"a report of {error.error_count()} wrong entries, expected a LocalReport"
        ) from None
