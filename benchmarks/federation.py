"""Federations to time: random images of MNIST's shape, and one simulator per executor."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from benchmarks.command import Setting
from secede import models
from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.federation.engine import LocalTraining, aggregate
from secede.federation.simulator import Simulator
from secede.state import State

SHAPE, CLASSES = (1, 28, 28), 10
LOOP = "plain loop on resident data"
TRAINING = LocalTraining()


def paper_cnn() -> nn.Module:
    """Return the paper's network."""
    return models.build("paper-cnn", shape=SHAPE, classes=CLASSES)


def random_images(count: int, seed: int = 0) -> Samples:
    """Return random images and labels on the host; a GPU multiplies zeros faster."""
    draw = torch.Generator().manual_seed(seed)
    return Samples(
        torch.rand(count, *SHAPE, generator=draw),
        torch.randint(CLASSES, (count,), generator=draw),
    )


def split(samples: Samples, clients: int) -> list[Samples]:
    """Deal the samples out equally; what is left over is dropped."""
    each = len(samples) // clients
    if each == 0:
        raise SystemExit(f"{len(samples)} images are too few for {clients} clients: raise --images")
    return [
        Samples(samples.x[i : i + each], samples.y[i : i + each])
        for i in range(0, clients * each, each)
    ]


class Rounds:
    """A federation that trains and aggregates one round each time it is called."""

    def __init__(self, engine: Simulator) -> None:
        self.engine = engine
        self.state: dict[str, Tensor] = engine.initial_state("initial")
        self._numbers = itertools.count(1)

    def __call__(self) -> State:
        """Train one round from where the last one ended."""
        everyone = range(len(self.engine.clients))
        reply = self.engine.train_round(
            self.state, everyone, phase="training", number=next(self._numbers)
        )
        self.state = aggregate(reply.updates)
        return self.state


def simulator(
    setting: Setting,
    executor: str,
    clients: Sequence[Samples],
    make_model: Callable[[], nn.Module] = paper_cnn,
) -> Simulator:
    """Return a federation of `clients` that trains by `executor`."""
    return Simulator(
        clients,
        make_model,
        training=TRAINING,
        seed=0,
        device=setting.device,
        executor=executor,
        precision=setting.precision,
    )


def simulators(
    setting: Setting,
    clients: Sequence[Samples],
    make_model: Callable[[], nn.Module] = paper_cnn,
) -> tuple[dict[str, Simulator], dict[str, str]]:
    """Return a federation per executor, the plain loop first, and why others refused.

    Samples are moved to the device once and shared.
    """
    start_afresh(setting.device)
    resident = [samples.to(setting.device) for samples in clients]
    found: dict[str, Simulator] = {}
    refused: dict[str, str] = {}
    for name in ("loop", *setting.executors):
        try:
            engine = simulator(setting, name, resident, make_model)
        except ConfigError as error:
            refused[name] = refusal(error)
        else:
            found[title(name, engine)] = engine
    return found, refused


def title(name: str, engine: Simulator) -> str:
    """Return an executor's name in tables; 'auto' says what it picked."""
    if name == "loop":
        return LOOP
    return f"{name} ({engine.choice.name})" if name != engine.choice.name else name


def refusal(error: ConfigError) -> str:
    """Return why an executor refused, without what the row says already."""
    why = str(error).partition("cannot run this federation: ")[2] or str(error)
    return "refused: " + why.removesuffix("; 'auto' finds another")


def start_afresh(device: str) -> None:
    """Forget the memory and graphs of earlier federations."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
