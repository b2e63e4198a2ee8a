"""A federation on a GPU, and the same on the CPU."""

from __future__ import annotations

import pytest
import torch

from secede import models
from secede import state as states
from secede.data.samples import Samples
from secede.experiments.setup import make_deterministic
from secede.federation.engine import LocalTraining, aggregate
from secede.federation.simulator import Simulator
from secede.state import State

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def trained() -> State:
    make_deterministic()
    draw = torch.Generator().manual_seed(0)
    clients = [
        Samples(torch.rand(n, 1, 28, 28, generator=draw), torch.arange(n) % 10) for n in (300, 200)
    ]
    engine = Simulator(
        clients,
        lambda: models.build("paper-cnn", shape=(1, 28, 28), classes=10),
        training=LocalTraining(),
        seed=0,
        device="cuda",
    )
    state: State = engine.initial_state("initial")
    for number in (1, 2):
        state = aggregate(
            engine.train_round(state, (0, 1), phase="training", number=number).updates
        )
    return state


def test_the_same_seed_gives_the_same_digest_on_a_gpu() -> None:
    assert states.digest(trained()) == states.digest(trained())


def test_a_digest_does_not_depend_on_the_device() -> None:
    value = {"w": torch.randn(5, 5), "n": torch.tensor(3)}
    moved = {name: tensor.cuda() for name, tensor in value.items()}
    assert states.digest(value) == states.digest(moved)
