"""Attacks on an erasure, each measured with and without its defence in the lab.

Print the threat table: python -m benchmarks.threats.attacks
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import safetensors.torch
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from benchmarks.threats.lab import (
    AFTERWARDS,
    LEAVER,
    PLANTED,
    RETAINED,
    ROUNDS_OF_NEXT_RUNG,
    SEEDS,
    SMUGGLED,
    SMUGGLED_INSIDE,
    Lab,
)
from secede import state as states
from secede.data.samples import Samples
from secede.erasure.defences.gate import Counts, tally
from secede.erasure.defences.state_message import limit_bytes, pack_state, unpack_state
from secede.errors import GuardError
from secede.federation.engine import Update
from secede.federation.robust import by_name
from secede.scenarios.backdoor import Backdoor
from secede.state import State

FADED = "what the retained clients do not use fades"
SURVIVES = 0.1  # of triggered images: more is said to survive


@dataclass(frozen=True)
class Row:
    """One line of the threat table: shares from 0 to 1."""

    threat: str
    measure: str
    without: float
    defended: float
    by: str  # what the defence did


def auc(positive: Tensor, negative: Tensor) -> float:
    """Return how well a score tells positives from negatives, whichever way round: 0.5 to 1."""
    truth = [1] * len(positive) + [0] * len(negative)
    found = float(roc_auc_score(truth, torch.cat([positive, negative]).numpy()))
    return max(found, 1 - found)


def swapped(state: State, one: str, other: str) -> State:
    """Return the state with two of its entries exchanged."""
    return {**state, one: state[other], other: state[one]}


# States that break the model: test accuracy of what is served in the end.


def breaking(lab: Lab) -> dict[str, State]:
    """Return the states of leavers who want to break the model."""
    inside = 1.2 * lab.unit  # the guard lets 1.25 by
    return {
        "destructive state, noise of 10 units": lab.noisy(lab.reference, 10 * lab.unit),
        "destructive state, ascent to 1.2 units": lab.local(
            "projected-ascent",
            radius=inside,
            stop_distance=1e9,
            epochs=10,
            batch_size=64,
            learning_rate=0.05,
        ),
        "scaled state, × 10": states.scaled(lab.honest, 10),
        "scaled state, × −1": states.scaled(lab.honest, -1),
        "NaN": {name: value * float("nan") for name, value in lab.honest.items()},
        "swapped tensors": swapped(lab.honest, "3.weight", "5.weight"),
    }


def broken(lab: Lab, threat: str, returned: State) -> Row:
    """Measure one of them."""
    outcome = lab.erase(returned)
    words = {
        "guard": "refused by the guard",
        "gate": "rolled back by the gate",
        "": "neither guard nor gate objects",
    }
    return Row(
        threat,
        f"test accuracy after {AFTERWARDS} rounds",
        lab.trusting(returned),
        lab.accuracy(outcome.served),
        words[outcome.stopped_by],
    )


# States that keep or smuggle something in: success of the backdoor.


def lazy(lab: Lab) -> Iterable[Row]:
    """The leaver wants its planted backdoor to stay."""
    measure = f"planted backdoor's success after {AFTERWARDS} rounds"
    for threat, returned in {
        "lazy state: the global model": lab.global_state,
        "lazy state: the reference": lab.reference,
        "lazy state: half of each": states.mean([lab.global_state, lab.reference], [1, 1]),
    }.items():
        without = lab.success(lab.post_train(returned))
        assert lab.erase(returned).stopped_by == "guard"
        by = f"refused by the guard; next rung, {ROUNDS_OF_NEXT_RUNG} rounds"
        yield Row(threat, measure, without, lab.success(lab.next_rung), by)
    for units in (0.05, 0.8):
        yield noisy(lab, units, f"lazy state: the global model with noise of {units:g} units")
    inside = lab.planted_inside
    yield noisy(inside, 0.05, "the same with 0.05 units, trigger five pixels from the edge")


def noisy(lab: Lab, units: float, threat: str) -> Row:
    """Measure a lazy leaver that adds noise."""
    returned = lab.noisy(lab.global_state, units * lab.unit)
    outcome = lab.erase(returned)
    after = lab.success(outcome.served)
    return Row(
        threat,
        f"planted backdoor's success after {AFTERWARDS} rounds",
        lab.success(lab.post_train(returned)),
        after,
        outcome.stopped_by or ("**survives**" if after > SURVIVES else FADED),
    )


def smuggled(lab: Lab) -> Iterable[Row]:
    """The leaver plants a new backdoor in what it returns."""
    measure = "new backdoor's success"
    for backdoor, threat in (
        (SMUGGLED, "backdoored state"),
        (SMUGGLED_INSIDE, "backdoored state, trigger five pixels from the edge"),
    ):
        returned = lab.backdoored(backdoor)
        yield trusted(lab, threat, returned, backdoor)
        more = lab.success(lab.post_train(returned, 10, fade=True), backdoor)
        yield Row(
            threat,
            f"{measure} after 10 rounds",
            lab.success(lab.post_train(returned, 10), backdoor),
            more,
            "**survives**; more post-training helps little" if more > SURVIVES else FADED,
        )
        yield Row(
            threat,
            measure,
            lab.success(returned, backdoor),
            lab.success(lab.next_rung, backdoor),
            f"a rung that takes nothing from the leaver, {ROUNDS_OF_NEXT_RUNG} rounds",
        )


def aware(lab: Lab) -> Iterable[Row]:
    """The leaver knows what fades, and puts its backdoor where it might not."""
    for threat, returned in {
        "backdoored state, boosted to the guard's limit": lab.boosted(),
        "backdoored state that lost beforehand what fades": lab.prepared(),
    }.items():
        yield trusted(lab, threat, returned, SMUGGLED_INSIDE)


def hidden(lab: Lab) -> Iterable[Row]:
    """Single updates cannot tell what is used: their mean must."""
    returned, backdoor = lab.backdoored(SMUGGLED_INSIDE), SMUGGLED_INSIDE
    for name in ("mean", "trimmed", "median"):
        mean = by_name(name)
        where = "secure aggregation" if name == "mean" else f"robust mean: {name}"
        yield Row(
            f"backdoored state, trigger five pixels from the edge, {where}",
            f"new backdoor's success after {AFTERWARDS} rounds",
            lab.success(lab.post_train(returned, mean=mean), backdoor),
            lab.success(lab.post_train(returned, mean=mean, fade=True, hidden=True), backdoor),
            "what the mean of the retained clients does not use fades",
        )


def trusted(lab: Lab, threat: str, returned: State, backdoor: Backdoor) -> Row:
    """Measure a new backdoor that guard and gate do not see."""
    outcome = lab.erase(returned)
    after = lab.success(outcome.served, backdoor)
    return Row(
        threat,
        f"new backdoor's success after {AFTERWARDS} rounds",
        lab.success(lab.post_train(returned), backdoor),
        after,
        outcome.stopped_by or ("**survives**" if after > SURVIVES else FADED),
    )


# Malicious retained clients, one or two of five, in post-training after an honest step.


def turned_round(update: Update, start: State) -> State:
    """Send ten times the opposite of what was learnt."""
    return states.shifted(start, states.difference(update.state, start), -10)


def retained(lab: Lab) -> Iterable[Row]:
    """Measure what the means make of malicious clients."""

    def boosted(update: Update, start: State) -> State:
        taught = lab.taught(update.state, lab.engine.clients[update.client], epochs=5)
        return states.shifted(start, states.difference(taught, start), len(RETAINED))

    rounds = f"after {AFTERWARDS} rounds"

    def turned(name: str) -> float:
        mean = by_name(name)
        return lab.ends(lambda: lab.post_train(lab.honest, mean=mean, tamper=turned_round))

    def planted(name: str) -> float:
        after = lab.post_train(lab.honest, mean=by_name(name), tamper=boosted)
        return lab.success(after, SMUGGLED)

    accuracy, success = turned("mean"), planted("mean")
    for name in ("trimmed", "median"):
        by = f"robust mean: {name}"
        yield Row(
            "malicious retained client, update × −10",
            f"test accuracy {rounds}",
            accuracy,
            turned(name),
            by,
        )
        yield Row(
            "malicious retained client, boosted backdoor",
            f"new backdoor's success {rounds}",
            success,
            planted(name),
            by,
        )

    def two(name: str) -> float:
        mean = by_name(name)
        return lab.ends(
            lambda: lab.post_train(lab.honest, mean=mean, tamper=turned_round, malicious=2)
        )

    without = two("mean")
    for name, words in (("trimmed", ", which cuts one: **breaks**"), ("median", "")):
        yield Row(
            "two malicious retained clients, update × −10",
            f"test accuracy {rounds}",
            without,
            two(name),
            f"robust mean: {name}{words}",
        )


# What an attacker learns from the model before and the model after.


def leakage(lab: Lab) -> Iterable[Row]:
    """AUC of an attacker with the old model or w_u, and of one who has the erased model alone."""
    own = lab.engine.clients[LEAVER]
    members, others = own.take(own.y == lab.honest_samples.y), lab.test
    old, new, returned = lab.global_state, lab.erased, lab.honest

    def rise(state: State, samples: Samples) -> Tensor:
        return lab.losses(new, samples) - lab.losses(state, samples)

    triggered = PLANTED.probe(lab.test).samples.take(lab.test.y != PLANTED.target)
    plain = lab.test.take(lab.test.y != PLANTED.target)
    alone = auc(lab.losses(new, members), lab.losses(new, others))
    kind = auc(lab.confidence(new, triggered), lab.confidence(new, plain))
    retired, deleted = "the old model is retired", "w_u is deleted"
    yield Row(
        "leakage, old and erased model",
        "AUC: was this image the leaver's?",
        auc(rise(old, members), rise(old, others)),
        alone,
        retired,
    )
    yield Row(
        "leakage, old and erased model",
        "AUC: are images of this kind gone?",
        auc(lab.gap(old, new, triggered), lab.gap(old, new, plain)),
        kind,
        retired,
    )
    yield Row(
        "leakage, w_u and erased model",
        "AUC: was this image the leaver's?",
        auc(rise(returned, members), rise(returned, others)),
        alone,
        deleted,
    )
    yield Row(
        "leakage, w_u and old model",
        "AUC: are images of this kind gone?",
        auc(lab.gap(old, returned, triggered), lab.gap(old, returned, plain)),
        kind,
        f"{retired}, {deleted}",
    )


def oversized(lab: Lab, mebibytes: int = 64) -> tuple[int, int]:
    """Return the bytes that a plain reader and ours make of a message with a large stowaway."""
    stowaway = {"stowaway": torch.zeros(mebibytes << 18)}
    data = pack_state({**lab.honest, **stowaway})
    plain = states.size_bytes(safetensors.torch.load(data))
    try:
        ours = states.size_bytes(unpack_state(data, lab.global_state))
    except GuardError:
        ours = 0
    return plain, ours


def lied(lab: Lab, state: State) -> tuple[Counts, Counts]:
    """Return what is counted with `state` if one client denies all its hits, or claims all."""
    everyone = lab.counts(state)
    own = tally(lab.engine, RETAINED[-1:], state).counts[RETAINED[-1]]
    denied = tuple(a - b for a, b in zip(everyone.right, own.right, strict=True))
    claimed = tuple(a + b for a, b in zip(denied, own.samples, strict=True))
    return Counts(denied, everyone.samples), Counts(claimed, everyone.samples)


def table(lab: Lab) -> Iterable[Row]:
    """Return all rows."""
    for threat, returned in breaking(lab).items():
        yield broken(lab, threat, returned)
    yield from lazy(lab)
    yield from smuggled(lab)
    yield from aware(lab)
    yield from hidden(lab)
    yield from retained(lab)
    yield from leakage(lab)


def peace(lab: Lab) -> Iterable[tuple[str, str, float]]:
    """Return what is measured without an attack: model, measure and value."""
    for name, state in {
        "before": lab.global_state,
        f"honest erasure (second choice), {AFTERWARDS} rounds": lab.erased,
        "the same under secure aggregation": lab.post_train(lab.honest, fade=True, hidden=True),
        f"next rung (weight negation), {ROUNDS_OF_NEXT_RUNG} rounds": lab.next_rung,
    }.items():
        yield name, "test accuracy", lab.accuracy(state)
        yield name, "planted backdoor's success", lab.success(state)


def between(values: Sequence[float]) -> str:
    """Return least and most in per cent."""
    return f"{min(values):.1%} to {max(values):.1%}"


def markdown() -> Iterator[str]:
    """Yield the threat table's lines, least and most over the seeds, as they are measured."""
    torch.set_num_threads(1)
    labs = [Lab(seed) for seed in SEEDS]
    yield "| without an attack | measure | value |\n|---|---|---|"
    for found in zip(*(peace(lab) for lab in labs), strict=True):
        name, measure, _ = found[0]
        yield f"| {name} | {measure} | {between([value for *_, value in found])} |"
    yield "\n| threat | measure | without | with | what the defence did |\n|---|---|---|---|---|"
    for rows in zip(*(table(lab) for lab in labs), strict=True):
        without, defended = [row.without for row in rows], [row.defended for row in rows]
        by = "; or ".join(dict.fromkeys(row.by for row in rows))
        cells = (rows[0].threat, rows[0].measure, between(without), between(defended), by)
        yield f"| {' | '.join(cells)} |"
    plain, ours = oversized(labs[0])
    most = limit_bytes(labs[0].global_state)
    yield (
        f"| oversized message | bytes decoded | {plain:,} | {ours:,} "
        f"| refused before it is parsed: at most {most:,} bytes |"
    )
    yield "\nloss counted at the gate after an honest erasure, and if one client denies its hits:"
    for lab in labs:
        after = [lab.counts(lab.erased), lied(lab, lab.erased)[0]]
        losses = [lab.before.overall().value - counts.overall().value for counts in after]
        yield ", ".join(f"{loss:.1%}" for loss in losses)
    yield "honest start (second choice), units from the reference:"
    for lab in labs:
        report = lab.guard().check(lab.honest)[1]
        yield f"{report.distance / report.unit:.2f}"


def main() -> None:
    """Print them."""
    for line in markdown():
        print(line, flush=True)


if __name__ == "__main__":
    main()
