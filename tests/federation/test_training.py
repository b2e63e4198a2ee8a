from __future__ import annotations

import pytest
import torch
from torch import nn

from secede.data.samples import Samples
from secede.errors import StateError
from secede.federation.engine import LocalTraining
from secede.federation.training import batches, orders, train
from secede.seeding import generator


def numbered(count: int) -> Samples:
    return Samples(torch.arange(count, dtype=torch.float32)[:, None], torch.zeros(count).long())


def test_an_epoch_meets_every_sample_once_and_keeps_the_partial_batch() -> None:
    found = list(batches(numbered(10), 4, orders(10, 1, generator(0, "x"))[0]))
    assert [len(labels) for _, labels in found] == [4, 4, 2]
    assert sorted(torch.cat([x for x, _ in found]).flatten().tolist()) == list(range(10))


def test_two_steps_with_momentum_match_the_hand_sum() -> None:
    # Gradient 1 twice: velocity 1 then 1.9, so the weight is -0.1 * 2.9.
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    ones = Samples(torch.ones(2, 1), torch.zeros(2).long())
    how = LocalTraining(learning_rate=0.1, momentum=0.9, batch_size=1)
    train(
        model,
        ones,
        how,
        orders=orders(len(ones), how.epochs, generator(0, "x")),
        loss=lambda out, _: out.mean(),
    )
    assert model.weight.item() == pytest.approx(-0.29)


def test_the_defaults_are_the_papers() -> None:
    how = LocalTraining()
    assert (how.learning_rate, how.momentum, how.batch_size, how.epochs) == (0.01, 0.9, 128, 1)


def test_a_wholly_frozen_model_is_refused() -> None:
    model = nn.Linear(1, 1).requires_grad_(False)
    with pytest.raises(StateError, match="no trainable parameters"):
        train(model, numbered(2), LocalTraining(), orders=[torch.arange(2)])
