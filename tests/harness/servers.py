"""A tiny trained federation, as a method finds it at the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from secede.data.samples import Samples
from secede.federation.engine import LocalTraining, aggregate
from secede.federation.simulator import Simulator
from secede.state import State
from secede.unlearning.method import Method, Server, Start
from secede.unlearning.update_history import UpdateHistory

CLASSES = 3
SHAPE = (1, 6, 6)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def blobs(count: int, seed: int) -> Samples:
    """Return images whose class is told by which third of their rows is bright."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (count,), generator=draw)
    x = 0.3 * torch.rand(count, *SHAPE, generator=draw)
    for row in range(2):
        x[torch.arange(count), 0, 2 * y + row] += 0.7
    return Samples(x, y)


def server(
    *,
    sizes: tuple[int, ...] = (24, 30, 18),
    rounds: int = 4,
    seed: int = 0,
    history: Path | None = None,
    unlabelled: Tensor | None = None,
    make_model: Callable[[], nn.Module] = network,
    clients: list[Samples] | None = None,
) -> Server:
    """Train `rounds` rounds of FedAvg; client 0 is the leaver."""
    engine = Simulator(
        clients or [blobs(size, seed=100 * seed + i) for i, size in enumerate(sizes)],
        make_model,
        training=LocalTraining(learning_rate=0.1, batch_size=8),
        seed=seed,
    )
    recorded_history = None if history is None else UpdateHistory(history)
    state: State = engine.initial_state("initial")
    for number in range(1, rounds + 1):
        reply = engine.train_round(
            state, range(len(engine.clients)), phase="training", number=number
        )
        if recorded_history is not None:
            recorded_history.record(number, state, reply.updates)
        state = aggregate(reply.updates)
    return Server(
        engine=engine,
        global_state=state,
        leaver=0,
        retained=tuple(range(1, len(engine.clients))),
        fresh_state=lambda: engine.initial_state("retraining"),
        fresh_model=lambda: engine.fresh_model("template"),
        history=recorded_history,
        unlabelled=unlabelled,
    )


def erase(method: Method, at: Server, rounds: int = 1) -> tuple[Start, State]:
    """Run the method and `rounds` rounds of its post-training."""
    start = method.start(at)
    state, memory = start.state, start.memory
    for number in range(1, rounds + 1):
        after = method.recover(at, state, memory, number)
        state, memory = after.state, after.memory
    return start, state


def at_zero(clients: list[Samples], *, training: LocalTraining) -> Server:
    """Return a linear model of two classes with all weights zero; client 0 is the leaver."""
    width = clients[0].x.shape[1]
    engine = Simulator(clients, lambda: nn.Linear(width, 2, bias=False), training=training, seed=0)
    return Server(
        engine=engine,
        global_state={"weight": torch.zeros(2, width)},
        leaver=0,
        retained=tuple(range(1, len(clients))),
        fresh_state=lambda: engine.initial_state("fresh"),
        fresh_model=lambda: engine.fresh_model("template"),
    )
