from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError, StateError
from secede.unlearning.steps.sgd import Descent, check_settings


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


def scalar(**changes: float) -> Descent:
    """A single weight at 2; the model's output for the input 1 is the weight itself."""
    settings: dict[str, Any] = {"learning_rate": 0.1, "momentum": 0.5, "clip": 100.0, **changes}
    return Descent(nn.Linear(1, 1, bias=False), {"weight": torch.tensor([[2.0]])}, **settings)


def weight(descent: Descent) -> float:
    return descent.state()["weight"].item()


def test_two_steps_match_the_hand_sum() -> None:
    # (w - 0)^2 at w = 2 has slope 4: 2 - 0.1 * 4 = 1.6. There the slope is 3.2 and the velocity
    # 0.5 * 4 + 3.2 = 5.2: 1.6 - 0.52 = 1.08.
    descent = scalar()
    descent.step(torch.ones(1, 1), torch.zeros(1, 1), squared)
    assert weight(descent) == pytest.approx(1.6)
    descent.step(torch.ones(1, 1), torch.zeros(1, 1), squared)
    assert weight(descent) == pytest.approx(1.08)
    assert (descent.steps, descent.gradient_samples) == (2, 2)
    assert descent.distance_to({"weight": torch.tensor([[0.08]])}) == pytest.approx(1.0)


def test_the_gradient_is_clipped_and_an_infinite_clip_clips_nothing() -> None:
    clipped, free = scalar(clip=1.0), scalar(clip=math.inf)
    for descent in (clipped, free):
        descent.step(torch.ones(1, 1), torch.zeros(1, 1), squared)
    assert weight(clipped) == pytest.approx(1.9, abs=1e-5)
    assert weight(free) == pytest.approx(1.6)


def test_it_is_sgd_of_torch_step_by_step() -> None:
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    start = states.of(model)
    states.load_into(twin, start)
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    descent = Descent(model, start, learning_rate=0.1, momentum=0.9, clip=math.inf)
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        inputs, labels = torch.randn(4, 3, generator=draw), torch.tensor([0, 1, 1, 0])
        descent.step(inputs, labels, nn.functional.cross_entropy)
        optimiser.zero_grad()
        nn.functional.cross_entropy(twin(inputs), labels).backward()
        optimiser.step()
    torch.testing.assert_close(descent.state(), states.of(twin))


def test_statistics_and_frozen_parameters_stay_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[2].bias.requires_grad_(False)
    start = states.of(model)
    descent = Descent(model, start, learning_rate=0.1, momentum=0.0, clip=5.0)
    descent.step(torch.randn(6, 3) + 9, torch.ones(6).long(), nn.functional.cross_entropy)
    after = descent.state()
    same = {name for name in start if torch.equal(start[name], after[name])}
    assert same == {"1.running_mean", "1.running_var", "1.num_batches_tracked", "2.bias"}


def test_what_is_not_finite_is_refused() -> None:
    descent = scalar(learning_rate=1e38, clip=math.inf)
    for _ in range(3):
        descent.step(torch.ones(1, 1), torch.zeros(1, 1), squared)
    with pytest.raises(StateError, match="gave values that are not finite within 3 steps"):
        descent.state()


def test_a_state_of_another_network_has_no_distance() -> None:
    with pytest.raises(StateError, match="names differ"):
        scalar().distance_to({"bias": torch.zeros(1)})


@pytest.mark.parametrize(
    ("name", "value"),
    [("learning_rate", 0.0), ("clip", -1.0), ("batch_size", 0), ("epochs", 0), ("momentum", 1.0)],
)
def test_settings_that_cannot_work_are_refused(name: str, value: float) -> None:
    settings: dict[str, float] = {"learning_rate": 1, "momentum": 0, "clip": 1}
    settings |= {"batch_size": 1, "epochs": 1, name: value}
    with pytest.raises(ConfigError, match=f"{name} must be"):
        check_settings(**settings)  # type: ignore[arg-type]
