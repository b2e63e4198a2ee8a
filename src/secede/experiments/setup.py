"""Set up the federation of a config and a seed, ready to train."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from secede import models, scenarios
from secede.canaries import Canaries, plant, read
from secede.data import Dataset, Samples, catalog, partition
from secede.errors import ConfigError
from secede.experiments.config import Config
from secede.federation.engine import LocalTraining
from secede.federation.executors.choose import MIN_STACKED_CLIENTS, Choice
from secede.federation.simulator import Simulator
from secede.federation.training import Precision
from secede.scenarios.scenario import Probe, Scenario
from secede.seeding import generator

logger = logging.getLogger(__name__)

MINIMUM_TEST = 40
MINIMUM_NONMEMBERS = 10  # test samples like the leaver's are few where classes are its own


@dataclass(frozen=True)
class PlantedCanaries:
    """A client's canaries, and how many copies of each are among its samples."""

    canaries: Canaries
    copies: int

    def to_record(self, model: nn.Module) -> dict[str, object]:
        """Return what they say of a model, as records hold it."""
        return read(model, self.canaries).to_record()


@dataclass(frozen=True)
class Federation:
    """What an arm needs: the engine, the leaver, and the held-out samples."""

    engine: Simulator
    leaver: int
    retained: tuple[int, ...]
    test: Samples
    probe: Probe
    nonmembers: Samples  # held out, transformed like the leaver's
    nonmember_indices: Tensor | None = None  # in `test`; None: all of it, in order
    unlabelled: Tensor | None = None  # inputs that the server has
    classes: tuple[int, ...] = ()  # to erase with the leaver, where the scenario says so
    canaries: Mapping[int, PlantedCanaries] = field(default_factory=dict)  # by client

    @property
    def everyone(self) -> tuple[int, ...]:
        """All clients, in order."""
        return tuple(range(len(self.engine.clients)))


def resolve_device(device: str) -> str:
    """Return 'cpu' or 'cuda'; 'auto' means the GPU if there is one."""
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigError("device is 'cuda', but torch finds no GPU here: use 'cpu' or 'auto'")
    return ("cuda" if available else "cpu") if device == "auto" else device


def make_deterministic(precision: Precision = "float32") -> None:
    """Choose algorithms that give the same bits every time; float32 stays float32."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def load_dataset(config: Config) -> Dataset:
    """Return the config's data set, cut to its limit."""
    dataset = catalog.load(config.data)
    if config.limit is not None:
        # The same images for every seed: a seed varies the federation, not the data.
        dataset = dataset.limited(config.limit, generator(0, "limit"))
    return dataset


def federate(
    config: Config,
    dataset: Dataset,
    seed: int,
    *,
    search: Path | None,
    choice: Choice | None = None,
    salts: Mapping[int, bytes] | None = None,
) -> Federation:
    """Partition the data, transform the leaver's part, and build the simulator.

    `choice` is the executor of another seed of the same config, which is then shared. `salts` are
    those of the clients that plant canaries; by default the leaver's alone, drawn from the seed.
    """
    dealt = deal(config, dataset, seed)
    dataset, scenario, leaver = dealt.dataset, dealt.scenario, config.clients.leaver
    clients = [dataset.train.take(part) for part in dealt.parts]
    clients[leaver] = scenario.transform(clients[leaver], generator(seed, "scenario", "train"))
    plain = clients[leaver]
    salts = {leaver: leaver_salt(config, seed)} if salts is None else salts
    canaries = plant_canaries(config, clients, salts)
    nonmembers, indices = _nonmembers(scenario, dataset.test, plain, seed)
    return Federation(
        engine=simulate(config, dataset, clients, seed, search=search, choice=choice),
        leaver=leaver,
        retained=tuple(i for i in range(len(clients)) if i != leaver),
        test=dataset.test.to(config.device),
        probe=probe_on(scenario, dataset.test, config.device),
        nonmembers=nonmembers.to(config.device),
        nonmember_indices=indices,
        unlabelled=dealt.unlabelled,
        classes=getattr(scenario, "classes", ()),
        canaries=canaries,
    )


@dataclass(frozen=True)
class Deal:
    """A config's samples and who has which of them, before the leaver's are transformed."""

    dataset: Dataset  # without what the server holds back
    scenario: Scenario
    parts: tuple[Tensor, ...]  # each client's indices into the training samples
    unlabelled: Tensor | None  # inputs that the server has


def deal(config: Config, dataset: Dataset, seed: int) -> Deal:
    """Deal the data set's training samples to the clients of a config."""
    _check_enough(config, dataset)
    dataset, unlabelled = _hold_back(config, dataset, seed)
    scenario = scenarios.create(
        config.scenario.name,
        classes=len(dataset.classes),
        share=config.share,
        target=config.scenario.target,
        chosen=config.scenario.classes,
        kept=config.scenario.kept,
    )
    parts = scenario.deal(
        dataset.train.y,
        _partition(config, dataset, seed),
        config.clients.leaver,
        generator(seed, "scenario", "deal"),
    )
    return Deal(dataset, scenario, tuple(parts), unlabelled)


def simulate(
    config: Config,
    dataset: Dataset,
    clients: Sequence[Samples],
    seed: int,
    *,
    search: Path | None,
    choice: Choice | None = None,
) -> Simulator:
    """Return the engine in which these clients train as the config says."""
    return Simulator(
        clients,
        _model_maker(config, dataset, search),
        training=LocalTraining(**config.training.local()),
        seed=seed,
        device=config.device,
        executor=choice or config.executor,
        precision=config.precision,
    )


def plant_canaries(
    config: Config, clients: list[Samples], salts: Mapping[int, bytes]
) -> dict[int, PlantedCanaries]:
    """Plant canaries in the samples of clients with a salt; one that is too small gets none."""
    options, planted = config.canaries.options(), dict[int, PlantedCanaries]()
    for number, salt in salts.items() if options else ():
        result = plant(clients[number], salt, options)
        if result.canaries is None:
            logger.warning(f"client {number}: {result.reason}")
            continue
        clients[number] = result.samples
        planted[number] = PlantedCanaries(result.canaries, result.copies)
    return planted


def leaver_salt(config: Config, seed: int) -> bytes:
    """Return the salt that the leaver's canaries are drawn from, where none is given."""
    return hashlib.sha256(f"{seed}/canaries/{config.clients.leaver}".encode()).digest()


class FederationBuilder:
    """Builds the federations of many seeds, one at a time; they share data sets and executors.

    A data set is kept until the last seed that needs it is built.
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        """Expect one call of `build` for each of `configs`."""
        self._uses = Counter(_dataset_key(config) for config in configs)
        self._datasets: dict[Hashable, Dataset] = {}
        self._choices: dict[Hashable, Choice] = {}
        self._lock = threading.Lock()

    def build(self, config: Config, seed: int, search: Path | None) -> Federation:
        """Return the federation of one seed."""
        data, executor = _dataset_key(config), _executor_key(config)
        with self._lock:
            if data not in self._datasets:
                self._datasets[data] = load_dataset(config)
            dataset, choice = self._datasets[data], self._choices.get(executor)
            federation = federate(config, dataset, seed, search=search, choice=choice)
            self._choices[executor] = federation.engine.choice
            self._uses[data] -= 1
            if not self._uses[data]:
                del self._datasets[data]
        return federation


def _dataset_key(config: Config) -> Hashable:
    return config.data, config.limit


def _executor_key(config: Config) -> Hashable:
    """Return what federations must have in common to share an executor."""
    return (
        _dataset_key(config),
        config.model,
        tuple(config.training.local().values()),
        config.executor,
        config.precision,
        config.clients.count < MIN_STACKED_CLIENTS,
    )


def _hold_back(config: Config, dataset: Dataset, seed: int) -> tuple[Dataset, Tensor | None]:
    """Take the server's own images out of the training data before it is partitioned."""
    count = config.situation.server_data
    if not count:
        return dataset, None
    order = torch.randperm(len(dataset.train), generator=generator(seed, "server data"))
    own, rest = dataset.train.take(order[:count]), dataset.train.take(order[count:].sort().values)
    return replace(dataset, train=rest), own.x.to(config.device)


def _check_enough(config: Config, dataset: Dataset) -> None:
    limit = "" if config.limit is None else f" (limit is {config.limit})"
    needed = sum(config.clients.sizes or ()) or config.clients.count
    needed += config.situation.server_data
    if needed > len(dataset.train):
        key = "clients.sizes" if config.clients.sizes else "clients.count"
        if config.situation.server_data:
            key += " and situation.server_data"
        raise ConfigError(
            f"{key} asks for {needed} samples or more, but {dataset.name} has "
            f"{len(dataset.train)} training samples{limit}"
        )
    if len(dataset.test) < MINIMUM_TEST:
        raise ConfigError(
            f"{dataset.name} has {len(dataset.test)} test samples{limit}, expected at least "
            f"{MINIMUM_TEST}: membership attacks learn from one half and are judged on the other"
        )


def _nonmembers(
    scenario: Scenario, test: Samples, leaver: Samples, seed: int
) -> tuple[Samples, Tensor | None]:
    """Return test samples transformed like the leaver's, and their indices unless all."""
    transformed = scenario.transform(test, generator(seed, "scenario", "test"))
    indices = scenario.held_out(test.y, leaver.y, generator(seed, "scenario", "held out"))
    if indices is None:
        return transformed, None
    if len(indices) < MINIMUM_NONMEMBERS:
        raise ConfigError(
            f"{len(indices)} of {len(test)} test samples have the leaver's mix of classes, "
            f"expected at least {MINIMUM_NONMEMBERS} to judge membership attacks on: choose other "
            "classes (scenario.classes) or raise `limit`"
        )
    return transformed.take(indices), indices


def probe_on(scenario: Scenario, test: Samples, device: str) -> Probe:
    """Return the scenario's probe on `device`."""
    probe = scenario.probe(test)
    return Probe(probe.samples.to(device), probe.measures)


def _partition(config: Config, dataset: Dataset, seed: int) -> list[Tensor]:
    clients, draw, count = config.clients, generator(seed, "partition"), len(dataset.train)
    if clients.partition == "sizes" and clients.sizes is not None:
        return partition.by_sizes(count, clients.sizes, draw)
    if clients.partition == "dirichlet" and clients.alpha is not None:
        return partition.dirichlet(dataset.train.y, clients.count, clients.alpha, draw)
    return partition.equal(count, clients.count, draw)


def _model_maker(config: Config, dataset: Dataset, search: Path | None) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        return models.build(
            config.model, shape=dataset.shape, classes=len(dataset.classes), search=search
        )

    return make
