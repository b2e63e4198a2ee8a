"""The fidelity gate: the retained clients measure whether the federation still works for them.

Each counts, by class, how many of its own samples a model answers right. Counts are all that it
uploads, and their sums decide. The samples are those it trains on, before and after alike, as many
as the federation pinned for it. A client that lies can stop an erasure, or hide a loss, in
proportion to those: the sums cannot tell. Held-out samples of the server's own can veto.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch

from secede.erasure.defences.reply_checks import MALFORMED, SILENT, believed, is_plain
from secede.erasure.types import MAX_SAFE_INTEGER
from secede.errors import ConfigError, DataError, GuardError, SilentError
from secede.federation.cost import Cost
from secede.federation.engine import Engine
from secede.state import State
from secede.unlearning.client_tasks import CountRight
from secede.unlearning.method import Reply
from secede.verification.score import Score, share

CLASSES = 100_000  # that a reply may count


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


@dataclass(frozen=True)
class Tally:
    """What clients counted one by one, who did not or told nonsense, and what it took."""

    counts: Mapping[int, Counts]
    left_out: Mapping[int, str]
    cost: Cost


def tally(engine: Engine, clients: Sequence[int], state: State) -> Tally:
    """Let every client that is there count on its own samples with `state`."""
    counts, left_out, cost = dict[int, Counts](), dict[int, str](), Cost()
    for client in clients:
        try:
            reply, one = engine.ask(client, CountRight(), global_state=state)
        except SilentError:
            left_out[client] = SILENT
            continue
        except DataError:
            left_out[client] = MALFORMED
            continue
        cost += believed(one, 0)  # counting takes no gradient
        counted = _sound(reply)
        if counted is None:
            left_out[client] = MALFORMED
        else:
            counts[client] = counted
    return Tally(counts, left_out, cost)


def total(counts: Sequence[Counts]) -> Counts:
    """Return the sums over clients, in whole numbers of any size."""
    return Counts(
        tuple(map(sum, zip(*(c.right for c in counts), strict=True))),
        tuple(map(sum, zip(*(c.samples for c in counts), strict=True))),
    )


def count(engine: Engine, clients: Sequence[int], state: State) -> tuple[Counts, Cost]:
    """Let every client count on its own samples with `state`; return the sums and the cost."""
    found = tally(engine, clients, state)
    return summed(found), found.cost


def summed(found: Tally) -> Counts:
    """Return the sums where everybody counted, and the same classes; anything else raises."""
    for client, why in found.left_out.items():
        raise GuardError(f"client {client}'s counts cannot be used: {why}")
    if len({len(counts.samples) for counts in found.counts.values()}) != 1:
        raise GuardError("the clients counted different numbers of classes")
    return total(list(found.counts.values()))


def _sound(reply: Reply) -> Counts | None:
    """Return a reply's counts; None unless they are whole, in order and add up."""
    state = reply.state
    if not is_plain(state) or state.keys() != {"right", "samples"}:
        return None
    right, samples = state["right"], state["samples"]
    if not (right.dtype == samples.dtype == torch.int64 and right.shape == samples.shape):
        return None
    if right.ndim != 1 or not 1 <= len(right) <= CLASSES:
        return None
    found = Counts(tuple(right.tolist()), tuple(samples.tolist()))
    pairs = zip(found.right, found.samples, strict=True)
    if any(not 0 <= r <= n for r, n in pairs) or type(reply.samples) is not int:
        return None
    if reply.gradient_samples != 0:  # counting takes none
        return None
    return found if 1 <= sum(found.samples) == reply.samples <= MAX_SAFE_INTEGER else None


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
        everything = sum(before.samples)
        if everything < self.minimum:
            counted = f"{everything} samples were counted"
            return Failed(reason=f"{counted}, expected {self.minimum} or more")
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

    def veto(self, before: Counts, after: Counts, retained: Counts) -> Failed | None:
        """Object if the server's held-out samples show a sure loss, whatever the clients counted.

        Classes weigh as they do among the retained clients' samples, so that one which only the
        leaver held may fall. None: no objection, or too few samples to tell.
        """
        if not len(before.samples) == len(after.samples) == len(retained.samples):
            raise GuardError("held-out samples and clients have different numbers of classes")
        judged = [c for c, n in enumerate(before.samples) if n and retained.samples[c]]
        weight = sum(retained.samples[c] for c in judged)
        if sum(before.samples[c] for c in judged) < self.minimum or not weight:
            return None
        value = variance = 0.0
        for label in judged:
            share = retained.samples[label] / weight
            was, now = before.of_class(label), after.of_class(label)
            value += share * (was.value - now.value)
            # One right and one wrong more, so that a class of few samples is not taken for sure.
            for right, count in ((before.right[label], was.count), (after.right[label], now.count)):
                p = (right + 1) / (count + 2)
                variance += share**2 * p * (1 - p) / (count + 2)
        low = value - NormalDist().inv_cdf((1 + self.level) / 2) * math.sqrt(variance)
        if low <= self.margin:
            return None
        return Failed(
            reason=f"the server's held-out samples: accuracy fell by {value:.1%}, a loss of "
            f"{low:.1%} or more, expected at most {self.margin:.1%}"
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
