"""The fidelity gate: the retained clients measure whether the model still works for them.

Each counts, by class, how many of its own samples a model answers right. Counts are all that it
uploads, and their sums decide. The samples are those it trains on, before and after alike, as many
as the federation pinned for it. A client that lies can stop an erasure, or hide a loss, in
proportion to its samples: the sums cannot tell. The server's own held-out samples can veto.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch

from secede.erasure.defences.reply_checks import MALFORMED, SILENT, cap_gradients, is_plain
from secede.erasure.documents import Margins
from secede.erasure.types import MAX_SAFE_INTEGER
from secede.errors import DataError, GuardError, SilentError
from secede.federation.engine import Cost, Engine
from secede.state import State
from secede.unlearning import CountRight, Reply
from secede.verification import Score, share

MAX_CLASSES = 100_000  # in a reply


@dataclass(frozen=True)
class Counts:
    """Right answers by class, and how many samples there were."""

    right: tuple[int, ...]
    samples: tuple[int, ...]

    def overall(self) -> Score:
        """Return the accuracy over all samples."""
        return share(sum(self.right), sum(self.samples))

    def of_class(self, label: int) -> Score:
        """Return the accuracy on one class; somebody must have a sample of it."""
        return share(self.right[label], self.samples[label])


@dataclass(frozen=True)
class Tally:
    """What each client counted, who was left out and why, and the cost."""

    counts: Mapping[int, Counts]
    left_out: Mapping[int, str]
    cost: Cost


def tally(engine: Engine, clients: Sequence[int], state: State) -> Tally:
    """Let each client count its right answers with `state`; exclude silent and invalid replies."""
    return collect(clients, lambda client: engine.ask(client, CountRight(), global_state=state))


def collect(clients: Sequence[int], ask: Callable[[int], tuple[Reply, Cost]]) -> Tally:
    """Return what `ask` brings of each client's counts."""
    counts, left_out, cost = dict[int, Counts](), dict[int, str](), Cost()
    for client in clients:
        try:
            reply, cost_of_one = ask(client)
        except SilentError:
            left_out[client] = SILENT
            continue
        except DataError:
            left_out[client] = MALFORMED
            continue
        cost += cap_gradients(cost_of_one, 0)  # counting takes no gradient
        own_counts = _read_counts(reply)
        if own_counts is None:
            left_out[client] = MALFORMED
        else:
            counts[client] = own_counts
    return Tally(counts, left_out, cost)


def total(counts: Sequence[Counts]) -> Counts:
    """Return the sums over clients, in whole numbers of any size."""
    return Counts(
        tuple(map(sum, zip(*(c.right for c in counts), strict=True))),
        tuple(map(sum, zip(*(c.samples for c in counts), strict=True))),
    )


def _read_counts(reply: Reply) -> Counts | None:
    """Return a reply's counts; None unless they are whole, in order and add up."""
    state = reply.state
    if not is_plain(state) or state.keys() != {"right", "samples"}:
        return None
    right, samples = state["right"], state["samples"]
    if not (right.dtype == samples.dtype == torch.int64 and right.shape == samples.shape):
        return None
    if right.ndim != 1 or not 1 <= len(right) <= MAX_CLASSES:
        return None
    counts = Counts(tuple(right.tolist()), tuple(samples.tolist()))
    pairs = zip(counts.right, counts.samples, strict=True)
    if any(not 0 <= r <= n for r, n in pairs) or type(reply.samples) is not int:
        return None
    if reply.gradient_samples != 0:  # counting takes none
        return None
    return counts if 1 <= sum(counts.samples) == reply.samples <= MAX_SAFE_INTEGER else None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss of accuracy with its interval."""

    value: float
    low: float
    high: float


def find_loss(
    margins: Margins, before: Counts, after: Counts, *, by_class: bool = True
) -> str | None:
    """Compare the counts before the erasure with those after post-training; None: the gate passes.

    Otherwise return the reason: the lower end of a loss's interval is above its margin, or there
    are too few samples to tell. From round to round a class's accuracy swings by more than an
    erasure costs, so a loss that may be chance rolls nothing back (docs/threats.md has what honest
    erasures measure). A class may fall where all samples together surely rise: the leaver may have
    inflated it, at the others' cost. Classes of few samples do not decide; those that only the
    leaver held have none. After retraining no class does (`by_class`): each is as good as the
    others make it.
    """
    if before.samples != after.samples:
        raise GuardError("the counts before and after are not of the same samples")
    if (count := sum(before.samples)) < margins.min_samples:
        return f"{count} samples were counted, expected {margins.min_samples} or more"
    was, now = before.overall(), after.overall()
    loss = accuracy_loss(was, now, margins.level)
    if loss.low > margins.overall:
        return _reason("all samples", was, now, loss, margins.overall)
    if not by_class or loss.high < 0:
        return None
    for label, samples in enumerate(before.samples):
        if samples < margins.min_samples:
            continue
        was, now = before.of_class(label), after.of_class(label)
        loss = accuracy_loss(was, now, margins.level)
        if loss.low > margins.per_class:
            return _reason(f"class {label}", was, now, loss, margins.per_class)
    return None


def find_veto(margins: Margins, before: Counts, after: Counts, retained: Counts) -> str | None:
    """Return the sure loss that the server's held-out samples show, whatever the clients counted.

    Classes weigh as they do among the retained clients' samples, so that one which only the leaver
    held may fall. None: no sure loss, or too few samples to tell.
    """
    if not len(before.samples) == len(after.samples) == len(retained.samples):
        raise GuardError("held-out samples and clients have different numbers of classes")
    judged = [c for c, n in enumerate(before.samples) if n and retained.samples[c]]
    weight = sum(retained.samples[c] for c in judged)
    if sum(before.samples[c] for c in judged) < margins.min_samples or not weight:
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
    low = value - NormalDist().inv_cdf((1 + margins.level) / 2) * math.sqrt(variance)
    if low <= margins.overall:
        return None
    return (
        f"the server's held-out samples: accuracy fell by {value:.1%}, a loss of "
        f"{low:.1%} or more, expected at most {margins.overall:.1%}"
    )


def accuracy_loss(before: Score, after: Score, level: float) -> Loss:
    """Return before − after with Newcombe's interval, made of the two scores' Wilson intervals."""
    value = before.value - after.value
    (low_1, high_1), (low_2, high_2) = before.interval(level), after.interval(level)
    return Loss(
        value=value,
        low=value - math.hypot(before.value - low_1, high_2 - after.value),
        high=value + math.hypot(high_1 - before.value, after.value - low_2),
    )


def _reason(what: str, before: Score, after: Score, loss: Loss, margin: float) -> str:
    return (
        f"{what}: accuracy fell from {before.value:.1%} to {after.value:.1%} of {before.count:,} "
        f"samples, a loss of {loss.low:.1%} or more, expected at most {margin:.1%}"
    )
