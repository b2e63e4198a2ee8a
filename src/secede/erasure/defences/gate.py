"""The fidelity gate: the retained clients measure whether the model still works for them.

Each counts, by class, how many of its own samples a model answers right. Counts are all that it
uploads, and their sums decide. The samples are those it trains on, before and after alike, as many
as the federation pinned for it; so the samples whose answer changed decide (McNemar's test, and
Tango's for a margin). A client that lies can stop an erasure, or hide a loss, in proportion to its
samples: the sums cannot tell. The server's own held-out samples can veto.
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
from secede.verification import Score, paired_interval, share

MAX_CLASSES = 100_000  # in a reply
_CHANGES = {"lost", "gained"}
_MAX_SAMPLES = MAX_SAFE_INTEGER // 1024  # of a client: sums over 1,024 of them stay exact


@dataclass(frozen=True)
class Counts:
    """Right answers by class, and how many samples there were.

    Since the model from before, `lost` are no longer right, and `gained` were not right then.
    """

    right: tuple[int, ...]
    samples: tuple[int, ...]
    lost: tuple[int, ...] | None = None  # None: nobody compared
    gained: tuple[int, ...] | None = None

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


def tally(
    engine: Engine, clients: Sequence[int], state: State, before: State | None = None
) -> Tally:
    """Let each client count its right answers with `state`; exclude silent and invalid replies."""
    task = CountRight(before)
    return collect(clients, lambda client: engine.ask(client, task, global_state=state))


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
    """Return the sums over clients, in whole numbers of any size; changes if all compared."""
    lost = [c.lost for c in counts if c.lost is not None]
    gained = [c.gained for c in counts if c.gained is not None]
    all_compared = len(lost) == len(gained) == len(counts)
    return Counts(
        right=_sums([c.right for c in counts]),
        samples=_sums([c.samples for c in counts]),
        lost=_sums(lost) if all_compared else None,
        gained=_sums(gained) if all_compared else None,
    )


def consistent_changes(before: Counts, after: Counts, variance: float = 0.0) -> Counts:
    """Return `after`, without its changes where they do not lead there from `before`.

    Clients round up or down by at most one: with two kinds of count, `variance` is two for each.
    """
    if after.lost is None or after.gained is None:
        return after
    rows = zip(before.right, after.right, after.lost, after.gained, strict=True)
    if all(abs(was - lost + gained - now) <= 2 * variance for was, now, lost, gained in rows):
        return after
    return Counts(after.right, after.samples)


def _sums(counts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*counts, strict=True)))


def _read_counts(reply: Reply) -> Counts | None:
    """Return a reply's counts; None unless they are whole, in order and add up."""
    state = reply.state
    if not is_plain(state) or state.keys() - _CHANGES != {"right", "samples"}:
        return None
    if state.keys() & _CHANGES not in (set(), _CHANGES):
        return None
    shape = state["right"].shape
    if any(v.dtype != torch.int64 or v.shape != shape for v in state.values()):
        return None
    if len(shape) != 1 or not 1 <= shape[0] <= MAX_CLASSES:
        return None
    counts = Counts(**{name: tuple(values.tolist()) for name, values in state.items()})
    zeros = (0,) * shape[0]
    rows = zip(
        counts.right, counts.samples, counts.lost or zeros, counts.gained or zeros, strict=True
    )
    if any(not (0 <= g <= r <= n and 0 <= lost <= n - r) for r, n, lost, g in rows):
        return None
    if type(reply.samples) is not int:
        return None
    if reply.gradient_samples != 0:  # counting takes none
        return None
    return counts if 1 <= sum(counts.samples) == reply.samples <= _MAX_SAMPLES else None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss of accuracy with its interval."""

    value: float
    low: float
    high: float


def find_loss(
    margins: Margins,
    before: Counts,
    after: Counts,
    *,
    by_class: bool = True,
    variance: float = 0.0,
) -> str | None:
    """Compare the counts before the erasure with those after post-training; None: the gate passes.

    Otherwise return the reason: the lower end of a loss's interval is above its margin, or there
    are too few samples to tell. From round to round a class's accuracy swings by more than an
    erasure costs, so a loss that may be chance rolls nothing back (docs/threats.md has what honest
    erasures measure). A class may fall where all samples together surely rise: the leaver may have
    inflated it, at the others' cost. Classes of few samples do not decide; those that only the
    leaver held have none. After retraining no class does (`by_class`): each is as good as the
    others make it. `variance` is that of the changes in a class, by rounding at the clients.
    """
    if before.samples != after.samples:
        raise GuardError("the counts before and after are not of the same samples")
    if (count := sum(before.samples)) < margins.min_samples:
        return f"{count} samples were counted, expected {margins.min_samples} or more"
    loss = overall_loss(before, after, margins.level, variance)
    if loss.low > margins.overall:
        return _reason("all samples", before.overall(), after.overall(), loss, margins.overall)
    if not by_class or loss.high < 0:
        return None
    for label, samples in enumerate(before.samples):
        if samples < margins.min_samples:
            continue
        loss = _class_loss(before, after, label, margins.level, variance)
        if loss.low > margins.per_class:
            was, now = before.of_class(label), after.of_class(label)
            return _reason(f"class {label}", was, now, loss, margins.per_class)
    return None


def overall_loss(before: Counts, after: Counts, level: float, variance: float = 0.0) -> Loss:
    """Return the loss of accuracy over all samples, paired if the clients compared."""
    if after.lost is None or after.gained is None:
        return accuracy_loss(before.overall(), after.overall(), level)
    judged = sum(samples > 0 for samples in after.samples)
    lost, gained, samples = sum(after.lost), sum(after.gained), sum(after.samples)
    return _paired_loss(lost, gained, samples, level, judged * variance)


def _class_loss(before: Counts, after: Counts, label: int, level: float, variance: float) -> Loss:
    """Return the loss of accuracy on one class, paired if the clients compared."""
    if after.lost is None or after.gained is None:
        return accuracy_loss(before.of_class(label), after.of_class(label), level)
    lost, gained, samples = after.lost[label], after.gained[label], after.samples[label]
    return _paired_loss(lost, gained, samples, level, variance)


def _paired_loss(lost: int, gained: int, samples: int, level: float, variance: float) -> Loss:
    """Return the loss with Tango's interval, wider by the rounding of what changed."""
    value, (low, high) = (lost - gained) / samples, paired_interval(lost, gained, samples, level)
    blur = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(variance) / samples
    return Loss(
        value=value,
        low=value - math.hypot(value - low, blur),
        high=value + math.hypot(high - value, blur),
    )


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
