"""A tiny linear federation whose history a test writes by hand."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from secede import state as states
from secede.data.samples import Samples
from secede.federation.engine import LocalTraining, Update
from secede.federation.simulator import Simulator
from secede.state import State
from secede.unlearning.method import Server
from secede.unlearning.update_history import UpdateHistory


def weights(*values: float) -> State:
    return {"weight": torch.tensor([[float(value)] for value in values])}


def ones(labels: list[int]) -> Samples:
    return Samples(torch.ones(len(labels), 1), torch.tensor(labels))


def linear_server(folder: Path, *, interval: int = 1) -> Server:
    """The leaver, a client with one sample of class 0 and one with three of class 1."""
    engine = Simulator(
        [ones([1, 1]), ones([0]), ones([1, 1, 1])],
        lambda: nn.Linear(1, 2, bias=False),
        training=LocalTraining(learning_rate=1.0, momentum=0.0, batch_size=8),
        seed=0,
    )
    return Server(
        engine=engine,
        global_state=weights(7, 7),
        leaver=0,
        retained=(1, 2),
        fresh_state=lambda: engine.initial_state("retraining"),
        fresh_model=lambda: engine.fresh_model("template"),
        history=UpdateHistory(folder, interval=interval),
    )


def keep(server: Server, number: int, before: State, *sent: tuple[int, State, int]) -> None:
    """Record a round in which each client, with so many samples, sent an update."""
    assert server.history is not None
    updates = [Update(client, states.shifted(before, update), n) for client, update, n in sent]
    server.history.record(number, before, updates)
