from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from secede import state as states
from secede.unlearning.steps import Descent
from secede.unlearning.steps.adam import AdamAscent


def level(outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return outputs.sum()


def test_two_steps_along_a_constant_slope_match_the_hand_sum() -> None:
    # The slope is 3 in each step: both means are exact, so that each step is the rate.
    model = nn.Linear(1, 1, bias=False)
    ascent = AdamAscent(
        model, {"weight": torch.tensor([[2.0]])}, loss=level, learning_rate=0.1, clip=math.inf
    )
    batch = (torch.full((1, 1), 3.0), torch.zeros(1))
    ascent.ascend(batch)
    assert ascent.state()["weight"].item() == pytest.approx(2.1)
    ascent.ascend(batch)
    assert ascent.state()["weight"].item() == pytest.approx(2.2)
    assert (ascent.steps, ascent.gradient_samples) == (2, 2)


def test_a_descent_by_adam_is_torchs_step_by_step_and_leaves_frozen_parameters() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    start = states.of(model)
    twin = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    states.load_into(twin, start)
    optimiser = torch.optim.Adam(twin[2].parameters(), lr=0.1, eps=1e-7)
    descent = Descent(
        model, start, learning_rate=0.1, momentum=0.9, clip=math.inf, optimiser="adam"
    )
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        inputs, labels = torch.randn(4, 3, generator=draw), torch.tensor([0, 1, 1, 0])
        descent.step(inputs, labels, nn.functional.cross_entropy)
        optimiser.zero_grad()
        nn.functional.cross_entropy(twin(inputs), labels).backward()
        optimiser.step()
    torch.testing.assert_close(descent.state(), states.of(twin))
    assert torch.equal(descent.state()["0.weight"], start["0.weight"])
