"""Leavers whose removal looks like a loss: by malice, or because they had most of a class.

And leavers with an accomplice among the retained clients, which spoils every round.

Print the table (some minutes): python -m benchmarks.threats.usefulness
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from harness.erasure import small
from secede import state as states
from secede.data import catalog, partition
from secede.data.samples import Samples
from secede.erasure.planning.options import EraseOptions
from secede.errors import LossError
from secede.experiments.config import parse
from secede.federation.engine import Update
from secede.scenarios.backdoor import Backdoor
from secede.seeding import generator
from secede.simulation.backend import SimulatedBackend
from secede.simulation.new_federation import create_federation
from secede.state import State
from secede.verification.accuracy import evaluate

CLIENTS, LEAVER = 5, 0
INFLATED = 8  # the class that the attacker gives to all images without the trigger
PLANTED = Backdoor(share=0.5, target=9)
MEDIAN = EraseOptions(mean="median")
Sent = Callable[[Update, State], State]  # by a retained client, from its update and its start


@dataclass(frozen=True)
class Row:
    """How the erasure of one leaver ended."""

    leaver: str
    outcome: str
    given_up: str
    accuracy: tuple[float, float]  # on clean test images: the model from before, the one in service
    success: tuple[float, float]  # of the backdoor


def poisoned(train: Samples, noise: float, *, inflates: bool, images: int, seed: int) -> Samples:
    """Return the data with a share of wrong labels, and what the attacker makes of its part."""
    draw = generator(seed, "noise")
    wrong = torch.rand(len(train), generator=draw) < noise
    labels = torch.where(wrong, torch.randint(0, 10, (len(train),), generator=draw), train.y)
    sizes = [images] * CLIENTS
    own = partition.by_sizes(len(train), sizes, generator(seed, "partition"))[LEAVER]
    inputs = train.x.clone()
    planted = PLANTED.transform(Samples(inputs[own], labels[own]), generator(seed, "planted"))
    is_plain = (planted.x == inputs[own]).flatten(1).all(dim=1)
    inputs[own], labels[own] = planted.x, planted.y
    if inflates:
        labels[own[is_plain]] = INFLATED
    return Samples(inputs, labels)


def attack(folder: Path, noise: float, *, inflates: bool, seed: int = 0) -> Row:
    """Erase the attacker of a federation whose labels are partly wrong."""
    dataset, images = catalog.load("mnist-10k"), 800
    train = poisoned(dataset.train, noise, inflates=inflates, images=images, seed=seed)
    arrays = {
        "x_train": (train.x * 255).round().byte().numpy(),
        "y_train": train.y.numpy(),
        "x_test": (dataset.test.x * 255).round().byte().numpy(),
        "y_test": dataset.test.y.numpy(),
    }
    np.savez(folder / "poisoned.npz", allow_pickle=False, **arrays)
    data, scenario = str(folder / "poisoned.npz"), '{ name = "clean" }'
    name = f"backdoor{' and an inflated class' if inflates else ''}, {noise:.0%} label noise"
    return _erased(folder, data, scenario, name, images=images, rounds=20, seed=seed)


def honest(folder: Path, kept: float, *, seed: int = 0) -> Row:
    """Erase an honest leaver; the others keep a share of what they had of two classes."""
    scenario = f'{{ name = "exclusive", classes = [8, 9], kept = {kept} }}'
    name = f"honest, with {1 - kept:.0%} of the others' 8s and 9s"
    return _erased(folder, "mnist-10k", scenario, name, images=1600, rounds=12, seed=seed)


def without_numbers(update: Update, start: State) -> State:
    """Send finite values with which the next round's training has none."""
    return {name: torch.full_like(value, 1e38) for name, value in update.state.items()}


def turned(update: Update, start: State) -> State:
    """Send ten times the update, backwards."""
    return states.shifted(start, states.difference(update.state, start), -10)


def spoilt(folder: Path, name: str, sent: Sent, *, seed: int = 0) -> Row:
    """Erase a leaver with a backdoor; one of four retained clients spoils every round.

    Where a person must decide, the command is repeated with the median.
    """
    scenario = '{ name = "backdoor", share = 0.5, target = 9 }'
    name = f"backdoor, and an accomplice that sends {name}"
    return _erased(folder, "mnist-10k", scenario, name, images=800, rounds=20, seed=seed, sent=sent)


def _erased(
    folder: Path,
    data: str,
    scenario: str,
    leaver: str,
    *,
    images: int,
    rounds: int,
    seed: int,
    sent: Sent | None = None,
) -> Row:
    sizes = [images] * CLIENTS
    config = f"""
data = "{data}"
model = "benchmarks.threats.workflow_attacks:build"
device = "cpu"
executor = "cpu"
clients = {{ count = {CLIENTS}, leaver = {LEAVER}, partition = "sizes", sizes = {sizes} }}
scenario = {scenario}
training = {{ rounds = {rounds}, learning_rate = 0.05, batch_size = 32 }}
"""
    found = parse(config, name="usefulness")
    home = create_federation(folder / "home", found, name=small.NAME, seed=seed, now=small.NOW)
    backend = SimulatedBackend(home) if sent is None else small.Hostile(home, retained=sent)
    test = catalog.load("mnist-10k").test
    probe = PLANTED.probe(test)

    def measured() -> tuple[float, float]:
        model = backend.fresh_model(0)
        states.load_into(model, states.load(home.model_path(small.serving(home)))[0])
        triggered = evaluate(model, probe.samples)
        success = triggered.accuracy(probe.measures["attack_success"]).value
        return evaluate(model, test).accuracy().value, success

    before = measured()
    entry = small.receive(home)
    outcome = ""
    for how in (EraseOptions(), MEDIAN)[: 1 if sent is None else 2]:
        try:
            ended = small.erase(home, entry.id, ground=backend, how=how)
        except LossError:
            outcome += "undecided; "
            continue
        outcome += f"{ended.state}, {ended.rung}" if ended.rung else ended.state
        break
    after = measured()
    failures = [f"{each.rung}: {each.reason}" for each in small.course(home).failures]
    return Row(
        leaver,
        outcome.removesuffix("; "),
        "; ".join(failures),
        (before[0], after[0]),
        (before[1], after[1]),
    )


def table() -> Iterable[Row]:
    """Return all rows, each with a federation of its own."""
    for seed in (0, 1):
        for noise in (0.2, 0.35):
            for inflates in (False, True):
                with TemporaryDirectory() as folder:
                    yield attack(Path(folder), noise, inflates=inflates, seed=seed)
        for kept in (0.1, 0.2):
            with TemporaryDirectory() as folder:
                yield honest(Path(folder), kept, seed=seed)
        for name, sent in (("1e38", without_numbers), ("its update × −10", turned)):
            with TemporaryDirectory() as folder:
                yield spoilt(Path(folder), name, sent, seed=seed)


def markdown() -> Iterator[str]:
    """Yield the table's lines, as they are measured."""
    torch.set_num_threads(1)
    yield "| leaver | outcome | test accuracy | backdoor's success | given up before |"
    yield "|---|---|---|---|---|"
    for row in table():
        numbers = (" to ".join(f"{v:.1%}" for v in pair) for pair in (row.accuracy, row.success))
        yield f"| {' | '.join((row.leaver, row.outcome, *numbers, row.given_up))} |"


def main() -> None:
    """Print them."""
    for line in markdown():
        print(line, flush=True)


if __name__ == "__main__":
    main()
