"""Backdoors where all clients train with another optimiser, without and with what fades.

Print the table (some minutes): python -m benchmarks.threats.optimisers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.threats.attacks import between
from benchmarks.threats.lab import (
    AFTERWARDS,
    PLANTED,
    SEEDS,
    SMUGGLED,
    SMUGGLED_INSIDE,
    Lab,
    network,
)
from secede import state as states
from secede.federation.engine import Cost, RoundReply, Update
from secede.federation.robust import by_name
from secede.federation.simulator import Simulator
from secede.federation.training import batches
from secede.state import State

Make = Callable[[Iterable[nn.Parameter]], Optimizer]
OPTIMISERS: Mapping[str, Make] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.01),
}


def trained_with(make: Make) -> type[Simulator]:
    """Return an engine whose clients train with a fresh optimiser of that kind in each round."""

    class Adaptive(Simulator):
        def train_round(
            self, state: State, clients: Sequence[int], *, phase: str, number: int
        ) -> RoundReply:
            updates = []
            for client in clients:
                job = self._job(client, state, phase, number)
                model = self._make_model()
                states.load_into(model, state)
                optimiser = make(model.parameters())
                for order in job.orders:
                    for x, y in batches(job.samples, self._training.batch_size, order):
                        optimiser.zero_grad()
                        nn.functional.cross_entropy(model(x), y).backward()
                        optimiser.step()
                updates.append(Update(client, states.of(model), len(job.samples)))
            if self.remembers:
                self._remember(updates, phase)
            return RoundReply(tuple(updates), Cost(rounds=1))

    return Adaptive


def lab(name: str, seed: int) -> Lab:
    """Return the federation, trained with the optimiser of that name from the start."""
    return Lab(seed, PLANTED, network, trained_with(OPTIMISERS[name]))


def measured(lab: Lab) -> tuple[float, ...]:
    """Return accuracy of an honest erasure, success of lazy noise and of two new backdoors.

    Each without and with what fades, after the same rounds; the first and the last once more where
    the median of the updates tells what fades.
    """
    found: list[float] = []
    median = by_name("median")
    for fade in (False, True):
        found.append(lab.accuracy(lab.post_train(lab.honest, fade=fade)))
    for start, backdoor in (
        (lab.noisy(lab.global_state, 0.05 * lab.unit), PLANTED),
        (lab.backdoored(SMUGGLED), SMUGGLED),
        (lab.backdoored(SMUGGLED_INSIDE), SMUGGLED_INSIDE),
    ):
        for fade in (False, True):
            found.append(lab.success(lab.post_train(start, fade=fade), backdoor))
    found.append(lab.accuracy(lab.post_train(lab.honest, fade=True, mean=median)))
    inside = lab.backdoored(SMUGGLED_INSIDE)
    found.append(lab.success(lab.post_train(inside, fade=True, mean=median), SMUGGLED_INSIDE))
    return tuple(found)


def markdown() -> Iterator[str]:
    """Yield the table's lines, least and most over the seeds, as they are measured."""
    torch.set_num_threads(1)
    yield (
        f"| clients train with | honest: accuracy after {AFTERWARDS} rounds, without | with "
        "| lazy with noise: success, without | with | new backdoor: success, without | with "
        "| five pixels from the edge, without | with | honest, by the median "
        f"| five pixels from the edge, by the median |\n|{'---|' * 11}"
    )
    for name in OPTIMISERS:
        rows = [measured(lab(name, seed)) for seed in SEEDS]
        yield f"| {name} | {' | '.join(map(between, zip(*rows, strict=True)))} |"


def main() -> None:
    """Print them."""
    for line in markdown():
        print(line, flush=True)


if __name__ == "__main__":
    main()
