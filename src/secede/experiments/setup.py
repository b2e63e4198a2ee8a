"""From a config and a seed to a federation that is ready to train."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Federation:
    """Everything an arm needs: the engine, who leaves, and the held-out samples."""

    engine: Simulator
    leaver: int
    retained: tuple[int, ...]
    test: Samples
    probe: Probe
    nonmembers: Samples  # held out, transformed like the leaver's

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
    scenario = scenarios.create(
        config.scenario.name,
        classes=len(dataset.classes),
        share=config.share,
        target=config.scenario.target,
    )
    leaver = config.clients.leaver
    clients = [dataset.train.take(part) for part in _deal(config, dataset, seed)]
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
    return Federation(
        engine=engine,
        leaver=leaver,
        retained=tuple(i for i in range(len(clients)) if i != leaver),
        test=dataset.test.to(config.device),
        probe=_probe(scenario, dataset.test, config.device),
        nonmembers=scenario.transform(dataset.test, generator(seed, "scenario", "test")).to(
            config.device
        ),
    )


def _check_enough(config: Config, dataset: Dataset) -> None:
    limit = "" if config.limit is None else f" (limit is {config.limit})"
    asked = sum(config.clients.sizes or ()) or config.clients.count
    if asked > len(dataset.train):
        key = "clients.sizes" if config.clients.sizes else "clients.count"
        raise ConfigError(
            f"{key} asks for {asked} samples or more, but {dataset.name} has "
            f"{len(dataset.train)} training samples{limit}"
        )
    if len(dataset.test) < MINIMUM_TEST:
        raise ConfigError(
            f"{dataset.name} has {len(dataset.test)} test samples{limit}, expected at least "
            f"{MINIMUM_TEST}: membership attacks learn from one half and are judged on the other"
        )


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
