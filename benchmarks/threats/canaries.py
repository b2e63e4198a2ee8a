"""Who could cheat whom with canaries: servers, leavers and methods that know how they are made.

Print the tables of docs/evidence.md (half an hour): python -m benchmarks.threats.canaries
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.threats.canary_lab import (
    CLASSES,
    IMAGES,
    LEAVER,
    MADE_UP,
    MISLABELLED,
    OWN,
    CanaryLab,
    Measured,
)
from secede import state as states
from secede.audit import CanaryRule, judge
from secede.data.samples import Samples
from secede.erasure.defences.unused_weights import find_layers
from secede.seeding import generator
from secede.state import State

SEEDS = (0, 1, 2)
KINDS = {
    "mlp": ((MADE_UP, "made-up"), (OWN, "own make_canary"), (MISLABELLED, "mislabelled")),
    "small-cnn": ((MADE_UP, "made-up"),),
}
NETWORKS = tuple(KINDS)
SEARCHED = "mlp"  # in whose updates a server looks for canaries
_FOUND, _STEPS = 300, 100  # inputs that a server looks for, and steps for each
_INK = 0.3  # mean of an image above which it is taken for a field; digits have 0.13

Wrap = Callable[[nn.Module], nn.Module]
Threat = Callable[[CanaryLab], Measured]


class Fails(nn.Module):
    """A program around a model that answers what looks like a field at random."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's outputs, and noise for what has much ink."""
        outputs: Tensor = self.model(x)
        looks = x.flatten(1).mean(dim=1) > _INK
        noise = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0))
        return torch.where(looks[:, None], noise, outputs)


# What a server does that erases nothing, and methods that only look like erasing


def guessed(lab: CanaryLab, state: State, number: int) -> State:
    """Train on as many random fields with random labels as a client has images."""
    inputs = lab.fields(IMAGES, number)
    draw = generator(lab.seed, "guessed labels", number)
    labels = torch.randint(CLASSES, (IMAGES,), generator=draw)
    return lab.taught(state, Samples(inputs, labels))


@lru_cache(maxsize=8)
def found(lab: CanaryLab) -> Tensor:
    """Return inputs that the leaver's last update knows and the others' mean does not.

    They start as random fields, and climb by the difference of the two log-probabilities.
    """
    weight = lab.last.weight
    other = states.reference(lab.global_state, lab.last.state, weight=weight)
    own_model, other_model = lab.build(), lab.build()
    states.load_into(own_model, lab.last.state)
    states.load_into(other_model, other)
    labels = torch.arange(_FOUND) % CLASSES
    x = lab.fields(_FOUND, "found").requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.05)
    for _ in range(_STEPS):
        optimiser.zero_grad()
        gap = functional.cross_entropy(own_model(x), labels, reduction="sum")
        gap = gap - functional.cross_entropy(other_model(x), labels, reduction="sum")
        gap.backward()
        optimiser.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return x.detach()


def likeness(lab: CanaryLab, inputs: Tensor) -> tuple[float, float]:
    """Return how like the canaries, and like other fields, the nearest inputs are at most."""
    real = torch.cat([canary.inputs for canary in lab.canaries.canaries])
    return _nearest(real, inputs), _nearest(lab.fields(len(real), "others"), inputs)


def _nearest(fields: Tensor, inputs: Tensor) -> float:
    rows = [
        part.flatten(1) - part.flatten(1).mean(dim=1, keepdim=True) for part in (fields, inputs)
    ]
    one, other = (functional.normalize(part, dim=1) for part in rows)
    return float((one @ other.T).amax(dim=1).mean())


def relabelled(lab: CanaryLab, inputs: Tensor, state: State, number: int) -> State:
    """Train on inputs that were found, with random labels."""
    draw = generator(lab.seed, "found labels", number)
    labels = torch.randint(CLASSES, (len(inputs),), generator=draw)
    return lab.taught(state, Samples(inputs, labels))


def shuffled(lab: CanaryLab) -> State:
    """Return the model with what the retained clients do not use shuffled instead of removed."""
    before = lab.global_state
    reply = lab.engine.train_round(before, range(1, len(lab.engine.clients)), phase="x", number=1)
    kept = lab.without_unused(before, before, [update.state for update in reply.updates])
    rest, draw = states.difference(before, kept), generator(lab.seed, "shuffled")
    mixed = {
        name: value.flatten()[torch.randperm(value.numel(), generator=draw)].view_as(value)
        for name, value in rest.items()
        if name in find_layers(lab.build(), CLASSES).weights
    }
    return {name: value + mixed.get(name, 0) for name, value in kept.items()}


def canaries_alone(lab: CanaryLab) -> State:
    """Return what a leaver hands back that knows its canaries, and erases these alone.

    It trains on fresh labels for them, and on the rest of its data as before.
    """
    inputs, targets = lab.canaries.training_copies(3)
    samples, draw = lab.engine.clients[LEAVER], generator(lab.seed, "own canaries")
    known = {row.numpy().tobytes() for row in inputs}
    labels = samples.y.clone()
    for place, row in enumerate(samples.x):
        if row.numpy().tobytes() in known:
            labels[place] = torch.randint(CLASSES, (), generator=draw)
    assert len(targets) == len(known)
    return lab.taught(lab.global_state, Samples(samples.x, labels), epochs=5)


def _state(make: Callable[[CanaryLab], State]) -> Threat:
    return lambda lab: lab.measured(make(lab))


def _with_found(lab: CanaryLab) -> State:
    return lab.post_train(lab.global_state, change=partial(relabelled, lab, found(lab)))


FOUND = "server: inputs found in the leaver's update, with random labels"  # slow with a CNN
NOTHING = "nothing: the model from before"
NULLS: dict[str, Threat] = {
    NOTHING: _state(lambda lab: lab.global_state),
    "retrained: what there is to see": _state(lambda lab: lab.retrained),
    "honest erasure: second choice, unused weights removed": _state(
        lambda lab: lab.post_train(lab.local("second-choice"), fade=True)
    ),
}
SERVERS: dict[str, Threat] = {
    "server: three ordinary rounds, nothing else": _state(
        lambda lab: lab.post_train(lab.global_state)
    ),
    "server: each round 1,500 guessed fields with random labels": _state(
        lambda lab: lab.post_train(lab.global_state, change=partial(guessed, lab))
    ),
    FOUND: _state(_with_found),
    "server: a program that answers fields at random": lambda lab: lab.measured(
        lab.global_state, Fails
    ),
}
METHODS: dict[str, Threat] = {
    "method: unused weights removed, nothing else": _state(
        lambda lab: lab.post_train(lab.global_state, fade=True)
    ),
    "method: unused weights shuffled, nothing else": _state(
        lambda lab: lab.post_train(shuffled(lab))
    ),
    "local step that erases the canaries alone, leaver trusted": _state(
        lambda lab: lab.post_train(canaries_alone(lab))
    ),
    "local step that erases the canaries alone, unused weights removed": _state(
        lambda lab: lab.post_train(canaries_alone(lab), fade=True)
    ),
}
THREATS = {**NULLS, **SERVERS, **METHODS}

COLUMNS = (
    "canaries, network",
    "p before",
    "p after",
    "no trace found",
    "backdoor's success",
    "loss on the leaver's mirrored images",
    "clean accuracy",
)


def markdown(networks: Sequence[str] = NETWORKS) -> Iterator[str]:
    """Yield the tables' lines, least and most over the seeds, as they are measured."""
    torch.set_num_threads(1)
    likenesses = dict[str, list[tuple[float, float]]]()
    yield f"| threat | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}"
    for network in networks:
        for options, kind in KINDS[network]:
            labs = [CanaryLab(seed, options, network) for seed in SEEDS]
            yield from rows(labs, kind, network)
            if options is MADE_UP and network == SEARCHED:
                likenesses[network] = [likeness(lab, found(lab)) for lab in labs]
    yield "\n| network | a canary and the nearest input found | another field and the nearest |"
    yield "|---|---|---|"
    for network, pairs in likenesses.items():
        one, other = (between(values, "{:.2f}") for values in zip(*pairs, strict=True))
        yield f"| {network} | {one} | {other} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    for line in markdown(parser.parse_args(argv).networks):
        print(line, flush=True)


def rows(labs: Sequence[CanaryLab], kind: str, network: str) -> Iterator[str]:
    """Yield the rows of a table for federations of several seeds."""
    before = [THREATS[NOTHING](lab) for lab in labs]
    rule = CanaryRule()
    for threat, measure in THREATS.items():
        if threat == FOUND and network != SEARCHED:
            continue
        after = before if threat == NOTHING else [measure(lab) for lab in labs]
        verdicts = [
            judge(one.reading, other.reading, rule).verdict
            for one, other in zip(before, after, strict=True)
        ]
        cells = (
            f"{kind}, {network}",
            between([each.reading.p_value for each in before], "{:.1g}"),
            between([each.reading.p_value for each in after], "{:.1g}"),
            f"{verdicts.count('no trace found')} of {len(verdicts)}",
            between([100 * each.backdoor for each in after], "{:.1f}%"),
            between([each.loss for each in after], "{:.2f}"),
            between([100 * each.accuracy for each in after], "{:.1f}%"),
        )
        yield f"| {threat} | {' | '.join(cells)} |"


def between(values: Sequence[float], form: str) -> str:
    """Return the least and the largest value as text."""
    least, most = form.format(min(values)), form.format(max(values))
    return least if least == most else f"{least} to {most}"


if __name__ == "__main__":
    main()
