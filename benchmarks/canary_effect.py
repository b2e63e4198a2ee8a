"""How well canaries are remembered by their copies, and the time that reading them takes.

`secede canaries power` rests on the second table. Some minutes: python -m benchmarks.canary_effect
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from secede import models
from secede.audit import Reading
from secede.canaries import CanaryOptions, Planted, plant, read
from secede.data import catalog, partition
from secede.federation.engine import LocalTraining, aggregate
from secede.federation.simulator import Simulator
from secede.seeding import generator

CLIENTS, IMAGES, ROUNDS, CLASSES, SHAPE = 5, 1500, 10, 10, (1, 28, 28)
NETWORKS = ("mlp", "small-cnn")
COPIES = (1, 2, 3)
TRAINING = LocalTraining(learning_rate=0.02, batch_size=32)


def federation(network: str, seed: int, copies: int) -> tuple[Simulator, list[Planted]]:
    """Return an untrained federation whose clients all plant canaries, and these."""
    dataset = catalog.load("mnist-10k")
    sizes, draw = [IMAGES] * CLIENTS, generator(seed, "partition")
    options = CanaryOptions(copies=copies, max_share=0.04)
    planted = [
        plant(
            dataset.train.take(part),
            hashlib.sha256(f"{seed}/{number}".encode()).digest(),
            options,
            classes=CLASSES,
        )
        for number, part in enumerate(partition.by_sizes(len(dataset.train), sizes, draw))
    ]
    engine = Simulator(
        [each.samples for each in planted],
        lambda: models.build(network, shape=SHAPE, classes=CLASSES),
        training=TRAINING,
        seed=seed,
        executor="cpu",
    )
    return engine, planted


def readings(network: str, seed: int, copies: int, rounds: int) -> list[Reading]:
    """Train a federation, and return what each client reads."""
    engine, planted = federation(network, seed, copies)
    state = engine.initial_state("initial")
    for number in range(1, rounds + 1):
        reply = engine.train_round(state, range(CLIENTS), phase="training", number=number)
        state = aggregate(reply.updates)
    model = engine.model(state)
    return [read(model, each.canaries).reading() for each in planted if each.canaries]


def win_rate(found: Sequence[Reading]) -> float:
    """Return the share of other candidates that the drawn one beats, over all canaries."""
    mean = statistics.fmean(reading.ranks.mean for reading in found)
    return (CLASSES - mean) / (CLASSES - 1)


def times(network: str, repeats: int) -> tuple[float, float]:
    """Return the seconds of one client's round and of its reading, medians of turns."""
    engine, planted = federation(network, 0, 3)
    canaries, state = planted[0].canaries, engine.initial_state("initial")
    assert canaries is not None
    took: dict[str, list[float]] = {"round": [], "reading": []}
    work: dict[str, Callable[[], object]] = {
        "round": lambda: engine.train_round(state, [0], phase="timed", number=1),
        "reading": lambda: read(engine.model(state), canaries),
    }
    for turn in range(repeats + 1):
        for name, function in work.items():
            start = time.perf_counter()
            function()
            if turn:  # the first one warms up
                took[name].append(time.perf_counter() - start)
    return statistics.median(took["round"]), statistics.median(took["reading"])


def main(argv: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--copies", nargs="*", type=int, default=COPIES)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args(argv)
    print("| network | a client's round, ms | reading, ms | reading of a round |")
    print("| --- | --: | --: | --: |")
    for network in asked.networks:
        whole, part = times(network, asked.repeats)
        print(f"| {network} | {1e3 * whole:.0f} | {1e3 * part:.1f} | {100 * part / whole:.1f} % |")
    print("\n| network | copies | win rate | clients with p < 0.01 | largest p |")
    print("| --- | --: | --: | --: | --: |")
    for network in asked.networks:
        for copies in asked.copies:
            found = [
                reading
                for seed in range(asked.seeds)
                for reading in readings(network, seed, copies, asked.rounds)
            ]
            p_values = [reading.p_value for reading in found]
            seen = f"{sum(p < 0.01 for p in p_values)} of {len(p_values)}"
            cells = (copies, f"{win_rate(found):.3f}", seen, f"{max(p_values):.2g}")
            print(f"| {network} | {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
