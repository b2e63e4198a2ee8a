"""Backdoors by the place of their trigger, for two networks, without and with what fades.

Print the table (a quarter of an hour): python -m benchmarks.threats.trigger_positions
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from benchmarks.threats.attacks import between
from benchmarks.threats.lab import AFTERWARDS, PLANTED, SMUGGLED, Lab, network
from secede import models
from secede.scenarios.backdoor import Backdoor

PLACES = (1, 2, 3, 5, 7, 9, 12, 14)  # pixels from the edge; the last one is the middle
FEW = (2, 5, 9, 14)


def small_cnn() -> nn.Module:
    """Return the network of that name."""
    return models.build("small-cnn", shape=(1, 28, 28), classes=10)


def measured(lab: Lab, place: int) -> tuple[float, ...]:
    """Return accuracy of an honest erasure, success of lazy noise and of a new backdoor.

    Each without and with what fades, after the same rounds.
    """
    planted, new = lab.planted, replace(SMUGGLED, distance=place)
    lazy = lab.noisy(lab.global_state, 0.05 * lab.unit)
    backdoored = lab.backdoored(new)
    found: list[float] = []
    for fade in (False, True):
        found.append(lab.accuracy(lab.post_train(lab.honest, fade=fade)))
    for start, backdoor in ((lazy, planted), (backdoored, new)):
        for fade in (False, True):
            found.append(lab.success(lab.post_train(start, fade=fade), backdoor))
    return tuple(found)


def cells(rows: Sequence[tuple[float, ...]]) -> str:
    """Return least and most of every column."""
    return " | ".join(between(values) for values in zip(*rows, strict=True))


def planted(place: int) -> Backdoor:
    """Return the backdoor that the leaver plants while it trains, with its trigger there."""
    return replace(PLANTED, distance=place)


def markdown() -> Iterator[str]:
    """Yield the table's lines, least and most over the seeds, as they are measured."""
    torch.set_num_threads(1)
    yield (
        f"| network, pixels from the edge | honest: accuracy after {AFTERWARDS} rounds, without "
        "| with | lazy with noise: success, without | with | new backdoor: success, without "
        "| with |\n|---|---|---|---|---|---|---|"
    )
    for name, build, places, seeds in (
        ("perceptron", network, PLACES, (0, 1, 2)),
        ("small-cnn", small_cnn, FEW, (0, 1)),
    ):
        for place in places:
            labs = [Lab(seed, planted(place), build) for seed in seeds]
            rows = [measured(lab, place) for lab in labs]
            yield f"| {name}, {place} | {cells(rows)} |"


def main() -> None:
    """Print them."""
    for line in markdown():
        print(line, flush=True)


if __name__ == "__main__":
    main()
