"""The cells of the comparison: five clients, of whom the leaver has a share of all samples.

Half of the seeds and one data set are for tuning; what is reported was measured on others.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib.resources import files
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from secede import models, scenarios
from secede.canaries import Canaries, CanaryOptions, plant
from secede.data import Dataset, Samples, catalog, partition
from secede.federation.engine import LocalTraining
from secede.federation.simulator import Simulator
from secede.scenarios.classes import draw_like
from secede.scenarios.scenario import Probe, Scenario
from secede.seeding import generator

CLIENTS, LEAVER, RETAINED = 5, 0, (1, 2, 3, 4)
SCENARIOS = ("backdoor", "flipped", "clean", "exclusive")
SHARES = (0.05, 0.2, 0.4)
CANARIES = CanaryOptions(count=32, copies=3, max_share=0.1)


@dataclass(frozen=True, kw_only=True)
class Source:
    """How many samples of a data set are dealt, and how clients train on them."""

    samples: int
    training: LocalTraining
    rounds: int = 10


_PLAIN = LocalTraining(learning_rate=0.02, batch_size=32)
SOURCES = {
    "mnist-10k/20": Source(samples=7500, training=_PLAIN, rounds=20),
    "mnist-10k/40": Source(samples=7500, training=_PLAIN, rounds=40),
    "mnist-10k/5": Source(samples=7500, training=_PLAIN, rounds=5),
    "mnist-10k": Source(samples=7500, training=_PLAIN),
    "letters": Source(samples=6000, training=_PLAIN),
    "digits": Source(samples=1400, training=LocalTraining(learning_rate=0.05, batch_size=16)),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One federation: its data, its network, what sets the leaver apart, its share, the seed."""

    data: str
    network: str
    scenario: str
    share: float
    seed: int

    @property
    def name(self) -> str:
        """The cell's name as a file is called."""
        return "-".join(str(value) for value in asdict(self).values()).replace("/", "-")


def cells(
    data: Sequence[str],
    networks: Sequence[str],
    scenario_names: Sequence[str],
    shares: Sequence[float],
    seeds: Sequence[int],
) -> Iterator[Cell]:
    """Yield every combination, seed by seed."""
    for seed, name, network, scenario, share in product(
        seeds, data, networks, scenario_names, shares
    ):
        yield Cell(data=name, network=network, scenario=scenario, share=share, seed=seed)


@dataclass(frozen=True)
class Federation:
    """An untrained federation, and what its models are judged on."""

    engine: Simulator
    source: Source
    test: Samples
    probe: Probe
    measure: str  # of the probe
    clean: Tensor  # mask of the test samples whose accuracy should stay
    own: Samples  # of the leaver, without its canaries
    nonmembers: Samples  # held out, made like the leaver's
    canaries: Canaries | None


def federation(cell: Cell) -> Federation:
    """Return the federation of a cell, ready to train."""
    dataset, source = dataset_of(cell.data), SOURCES[cell.data]
    scenario = _scenario(cell, dataset)
    parts = deal(dataset.train.y, cell, source.samples, getattr(scenario, "classes", ()))
    clients = [dataset.train.take(part) for part in parts]
    own = scenario.transform(clients[LEAVER], generator(cell.seed, "scenario", "train"))
    salt = hashlib.sha256(f"{cell.name}/canaries".encode()).digest()
    planted = plant(own, salt, CANARIES, classes=len(dataset.classes))
    clients[LEAVER] = planted.samples
    build = partial(_build, cell.network, dataset.shape, len(dataset.classes))
    return Federation(
        engine=Simulator(clients, build, training=source.training, seed=cell.seed, executor="cpu"),
        source=source,
        test=dataset.test,
        probe=scenario.probe(dataset.test),
        measure=scenario.main_measure,
        clean=_clean(dataset.test.y, getattr(scenario, "classes", ())),
        own=own,
        nonmembers=_nonmembers(scenario, dataset.test, own, cell.seed),
        canaries=planted.canaries,
    )


def _build(network: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    return models.build(network, shape=shape, classes=classes)


def _scenario(cell: Cell, dataset: Dataset) -> Scenario:
    count = len(dataset.classes)
    chosen = None
    if cell.scenario == "exclusive":  # a light leaver has too few samples for two classes
        chosen = tuple(range(count - (1 if cell.share < 0.1 else count // 5), count))
    share = 0.66 if cell.scenario in ("backdoor", "flipped") else None
    return scenarios.create(cell.scenario, classes=count, share=share, chosen=chosen)


def deal(labels: Tensor, cell: Cell, total: int, exclusive: Sequence[int]) -> list[Tensor]:
    """Return the clients' parts: the leaver's share, and all of the `exclusive` classes' there.

    Samples of these classes that do not fit into the leaver's share are left out.
    """
    order = torch.randperm(len(labels), generator=generator(cell.seed, "deal"))
    apart = torch.isin(labels[order], torch.tensor(exclusive, dtype=labels.dtype))
    own, others = order[apart], order[~apart]
    size = round(cell.share * total)
    given = max(0, size - len(own))
    leaver = torch.cat([own[:size], others[:given]])
    retained = others[given : given + total - size]
    each = partition.equal(len(retained), CLIENTS - 1, generator(cell.seed, "partition"))
    return [leaver, *(retained[part] for part in each)]


def _clean(labels: Tensor, exclusive: Sequence[int]) -> Tensor:
    return ~torch.isin(labels, torch.tensor(exclusive, dtype=labels.dtype))


def _nonmembers(scenario: Scenario, test: Samples, own: Samples, seed: int) -> Samples:
    made = scenario.transform(test, generator(seed, "scenario", "test"))
    if not getattr(scenario, "classes", ()):
        return made
    return made.take(draw_like(test.y, own.y, generator(seed, "held out")))


@lru_cache(maxsize=1)
def dataset_of(name: str) -> Dataset:
    """Return a data set: ten letters of emnist47, scikit-learn's digits, or a named one."""
    name = name.partition("/")[0]
    if name == "letters":
        return _letters()
    return _digits() if name == "digits" else catalog.load(name)


def _letters() -> Dataset:
    whole = catalog.load("emnist47")
    train, test = (
        Samples(part.x[chosen], part.y[chosen] - 10)
        for part in (whole.train, whole.test)
        if (chosen := (part.y >= 10) & (part.y < 20)) is not None
    )
    return Dataset("letters", train, test, tuple("ABCDEFGHIJ"))


def _digits() -> Dataset:
    file = files("sklearn.datasets.data") / "digits.csv.gz"
    with file.open("rb") as packed, gzip.open(packed) as lines:
        rows = np.loadtxt(lines, delimiter=",")
    x = torch.from_numpy(rows[:, :-1] / 16).float().reshape(-1, 1, 8, 8)
    y = torch.from_numpy(rows[:, -1]).long()
    held_out = torch.arange(len(y)) % 5 == 4
    return Dataset(
        "digits",
        Samples(x[~held_out], y[~held_out]),
        Samples(x[held_out], y[held_out]),
        tuple("0123456789"),
    )
