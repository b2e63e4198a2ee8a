"""The fidelity gate: the retained clients measure whether the federation still works for them.

Each counts, by class, how many of its own samples a model answers right. Counts are all that it
uploads, and only their sums are used, so that the gate works under secure aggregation. The samples
are those it trains on, before and after alike. A client that lies can stop an erasure, or hide a
loss, in proportion to its samples: the sums cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secede import state as states
from secede.errors import ConfigError, GuardError
from secede.federation.cost import Cost
from secede.federation.engine import ClientSide, Engine
from secede.state import State
from secede.unlearning.clients import Reply, ask_each
from secede.verification.score import Score, share

BATCH = 256


@dataclass(frozen=True)
class Counts:
    """By class: samples of the retained clients, and how many of them were answered right."""

    right: tuple[int, ...]
    samples: tuple[int, ...]

    @classmethod
    def of(cls, found: Mapping[str, Sequence[int]]) -> Counts:
        """Return the counts that `as_dict` told."""
        return cls(tuple(found["right"]), tuple(found["samples"]))

    def as_dict(self) -> dict[str, list[int]]:
        """Return the counts by name, as the journal holds them."""
        return {"right": list(self.right), "samples": list(self.samples)}

    def overall(self) -> Score:
        """Return the accuracy over all samples."""
        return share(sum(self.right), sum(self.samples))

    def of_class(self, label: int) -> Score:
        """Return the accuracy on one class; somebody must have a sample of it."""
        return share(self.right[label], self.samples[label])


def count(engine: Engine, clients: Sequence[int], state: State) -> tuple[Counts, Cost]:
    """Let every client count on its own samples with `state`; return the sums and the cost."""
    replies, cost = ask_each(engine, clients, _count, global_state=state)
    for client, reply in zip(clients, replies, strict=True):
        _check(client, reply)
    sums = {
        name: tuple(int(n) for n in torch.stack([r.state[name] for r in replies]).sum(dim=0))
        for name in ("right", "samples")
    }
    return Counts(**sums), cost


@torch.inference_mode()
def _count(side: ClientSide) -> Reply:
    """Count at a client; answers that are not finite are wrong."""
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


def _check(client: int, reply: Reply) -> None:
    right, samples = reply.state["right"], reply.state["samples"]
    sound = (
        right.dtype == samples.dtype == torch.int64
        and right.ndim == 1
        and right.shape == samples.shape
        and bool((right >= 0).all() and (right <= samples).all())
        and int(samples.sum()) == reply.samples
    )
    if not sound:
        raise GuardError(f"client {client}'s counts do not add up to its {reply.samples:,} samples")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """How much accuracy was lost, and the interval that holds it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Passed:
    """Nothing was lost beyond the margins."""

    overall: Loss
    worst_class: int | None  # of those with enough samples to judge; None: there are none
    worst: Loss | None
    judged: tuple[int, ...]  # classes


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Too much was lost, or too little was counted to tell."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Fails if more than a margin was surely lost: at the lower end of the loss's interval.

    From round to round a class's accuracy swings by more than an erasure costs, so a loss that may
    be chance rolls nothing back (docs/threats.md has what honest erasures measure). Classes with
    fewer than `minimum` samples do not decide; those that only the leaver held have none.
    """

    margin: float = 0.05  # of all samples
    class_margin: float = 0.1
    minimum: int = 30  # samples
    level: float = 0.95  # of the intervals

    def __post_init__(self) -> None:
        for name in ("margin", "class_margin", "level"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"{name} must be above 0 and below 1, got {getattr(self, name)}")
        if self.minimum < 1:
            raise ConfigError(f"minimum must be at least 1, got {self.minimum}")

    def decide(self, before: Counts, after: Counts) -> Passed | Failed:
        """Compare the counts of the model before the erasure with those after post-training."""
        if before.samples != after.samples:
            raise GuardError("the counts before and after are not of the same samples")
        total = sum(before.samples)
        if total < self.minimum:
            return Failed(reason=f"{total} samples were counted, expected {self.minimum} or more")
        overall = lost(before.overall(), after.overall(), self.level)
        if overall.low > self.margin:
            was, now = before.overall(), after.overall()
            return Failed(reason=_words("all samples", was, now, overall, self.margin))
        losses = dict[int, Loss]()
        for label, samples in enumerate(before.samples):
            if samples < self.minimum:
                continue
            was, now = before.of_class(label), after.of_class(label)
            losses[label] = loss = lost(was, now, self.level)
            if loss.low > self.class_margin:
                return Failed(reason=_words(f"class {label}", was, now, loss, self.class_margin))
        worst = max(losses, key=lambda label: losses[label].low, default=None)
        return Passed(
            overall=overall,
            worst_class=worst,
            worst=None if worst is None else losses[worst],
            judged=tuple(losses),
        )


def lost(before: Score, after: Score, level: float) -> Loss:
    """Return before − after with Newcombe's interval, made of the two scores' Wilson intervals."""
    value = before.value - after.value
    (low_1, high_1), (low_2, high_2) = before.interval(level), after.interval(level)
    return Loss(
        value=value,
        low=value - math.hypot(before.value - low_1, high_2 - after.value),
        high=value + math.hypot(high_1 - before.value, after.value - low_2),
    )


def _words(what: str, before: Score, after: Score, loss: Loss, margin: float) -> str:
    return (
        f"{what}: accuracy fell from {before.value:.1%} to {after.value:.1%} of {before.count:,} "
        f"samples, a loss of {loss.low:.1%} or more, expected at most {margin:.1%}"
    )
