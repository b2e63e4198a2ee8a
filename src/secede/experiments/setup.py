"""From a config and a seed to a federation that is ready to train."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from secede import models, scenarios
from secede.data import catalog, partition
from secede.data.samples import Dataset, Samples
from secede.errors import ConfigError
from secede.experiments.config import Config
from secede.federation.executors.choose import Choice
from secede.federation.precision import Precision
from secede.federation.simulator import Simulator
from secede.federation.training import LocalTraining
from secede.scenarios.scenario import Probe, Scenario
from secede.seeding import generator

MINIMUM_TEST = 40
MINIMUM_NONMEMBERS = 10  # a test set has few samples like the leaver's where classes are its own


@dataclass(frozen=True)
class Federation:
    """Everything an arm needs: the engine, who leaves, and the held-out samples."""

    engine: Simulator
    leaver: int
    retained: tuple[int, ...]
    test: Samples
    probe: Probe
    nonmembers: Samples  # held out, transformed like the leaver's
    nonmember_places: Tensor | None = None  # which test samples they are; None: all, in order
    unlabelled: Tensor | None = None  # inputs that the server has
    classes: tuple[int, ...] = ()  # that the leaver takes with it, where the scenario says so

    @property
    def everyone(self) -> tuple[int, ...]:
        """All clients, in order."""
        return tuple(range(len(self.engine.clients)))


def resolve_device(device: str) -> str:
    """Return 'cpu' or 'cuda'; 'auto' takes the GPU if there is one."""
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
        # The same images for every seed: a seed varies the federation, not the question.
        dataset = dataset.limited(config.limit, generator(0, "limit"))
    return dataset


def federate(
    config: Config,
    dataset: Dataset,
    seed: int,
    *,
    search: Path | None,
    choice: Choice | None = None,
) -> Federation:
    """Deal the data, change the leaver's share of it, and put up the simulator.

    `choice` is the executor of another seed of the same config, to share it.
    """
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
    leaver = config.clients.leaver
    parts = scenario.deal(
        dataset.train.y,
        _deal(config, dataset, seed),
        leaver,
        generator(seed, "scenario", "deal"),
    )
    clients = [dataset.train.take(part) for part in parts]
    clients[leaver] = scenario.transform(clients[leaver], generator(seed, "scenario", "train"))
    engine = Simulator(
        clients,
        _model_maker(config, dataset, search),
        training=LocalTraining(**config.training.model_dump(exclude={"rounds"})),
        seed=seed,
        device=config.device,
        executor=choice or config.executor,
        precision=config.precision,
    )
    nonmembers, places = _nonmembers(scenario, dataset.test, clients[leaver], seed)
    return Federation(
        engine=engine,
        leaver=leaver,
        retained=tuple(i for i in range(len(clients)) if i != leaver),
        test=dataset.test.to(config.device),
        probe=_probe(scenario, dataset.test, config.device),
        nonmembers=nonmembers.to(config.device),
        nonmember_places=places,
        unlabelled=unlabelled,
        classes=getattr(scenario, "classes", ()),
    )


def _hold_back(config: Config, dataset: Dataset, seed: int) -> tuple[Dataset, Tensor | None]:
    """Take the server's own images out of the training part, before it is dealt."""
    count = config.situation.server_data
    if not count:
        return dataset, None
    order = torch.randperm(len(dataset.train), generator=generator(seed, "server data"))
    own, rest = dataset.train.take(order[:count]), dataset.train.take(order[count:].sort().values)
    return replace(dataset, train=rest), own.x.to(config.device)


def _check_enough(config: Config, dataset: Dataset) -> None:
    limit = "" if config.limit is None else f" (limit is {config.limit})"
    asked = sum(config.clients.sizes or ()) or config.clients.count
    asked += config.situation.server_data
    if asked > len(dataset.train):
        key = "clients.sizes" if config.clients.sizes else "clients.count"
        if config.situation.server_data:
            key += " and situation.server_data"
        raise ConfigError(
            f"{key} asks for {asked} samples or more, but {dataset.name} has "
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
    """Return test samples made like the leaver's, and which ones they are unless all."""
    made = scenario.transform(test, generator(seed, "scenario", "test"))
    places = scenario.held_out(test.y, leaver.y, generator(seed, "scenario", "held out"))
    if places is None:
        return made, None
    if len(places) < MINIMUM_NONMEMBERS:
        raise ConfigError(
            f"{len(places)} of {len(test)} test samples have the leaver's mix of classes, expected "
            f"at least {MINIMUM_NONMEMBERS} to judge membership attacks on: choose other classes "
            "(scenario.classes) or raise `limit`"
        )
    return made.take(places), places


def _probe(scenario: Scenario, test: Samples, device: str) -> Probe:
    probe = scenario.probe(test)
    return Probe(probe.samples.to(device), probe.measures)


def _deal(config: Config, dataset: Dataset, seed: int) -> list[Tensor]:
    how, draw, count = config.clients, generator(seed, "partition"), len(dataset.train)
    if how.partition == "sizes" and how.sizes is not None:
        return partition.by_sizes(count, how.sizes, draw)
    if how.partition == "dirichlet" and how.alpha is not None:
        return partition.dirichlet(dataset.train.y, how.count, how.alpha, draw)
    return partition.equal(count, how.count, draw)


def _model_maker(config: Config, dataset: Dataset, search: Path | None) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        return models.build(
            config.model, shape=dataset.shape, classes=len(dataset.classes), search=search
        )

    return make
