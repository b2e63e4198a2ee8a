from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from benchmarks.authors import Authors
from secede.data.samples import Samples
from secede.federation.engine import LocalTraining, aggregate
from secede.federation.simulator import Simulator


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_round_equals_the_simulators_where_a_batch_holds_all_samples(epochs: int) -> None:
    torch.manual_seed(0)
    clients = [Samples(torch.rand(20, 1, 4, 4), torch.arange(20) % 3) for _ in range(3)]
    training = LocalTraining(batch_size=32, learning_rate=0.1, epochs=epochs)
    model = small_net()
    start = copy.deepcopy(model.state_dict())
    engine = Simulator(clients, small_net, training=training, seed=0, executor="loop")
    authors = Authors(clients, model, training=training, device="cpu")

    authors()

    reply = engine.train_round(start, range(3), phase="training", number=1)
    expected = aggregate(reply.updates)
    found = authors.model.state_dict()
    assert not torch.equal(found["1.weight"], start["1.weight"])
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def test_each_client_trains_from_the_same_model() -> None:
    torch.manual_seed(0)
    samples = Samples(torch.rand(5, 1, 4, 4), torch.arange(5) % 3)
    model = small_net()
    alone = Authors([samples], copy.deepcopy(model), training=LocalTraining(), device="cpu")
    twice = Authors([samples] * 2, model, training=LocalTraining(), device="cpu")
    alone()
    twice()
    for name, value in alone.model.state_dict().items():
        torch.testing.assert_close(twice.model.state_dict()[name], value)
