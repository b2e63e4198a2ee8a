from __future__ import annotations

import pytest
import torch
from torch import nn

from secede import state as states
from secede.state import State
from secede.unlearning.steps.ascent import AnchorState, Ascent


def ascent(model: nn.Module) -> Ascent:
    return Ascent(
        model,
        states.of(model),
        loss=nn.functional.cross_entropy,
        learning_rate=0.1,
        momentum=0.9,
        clip=5.0,
    )


def batch(classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(12, 4, generator=draw), torch.arange(12) % classes


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(4, 3),
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 3)),
    ],
    ids=["plain", "batchnorm", "frozen"],
)
def test_its_distance_and_projection_equal_those_of_states(model: nn.Module) -> None:
    moved = ascent(model)
    center = moved.state()
    other = {k: v + 0.1 if v.is_floating_point() else v for k, v in center.items()}
    near, far = AnchorState(moved, center), AnchorState(moved, other)
    for _ in range(3):
        moved.ascend(batch())

    def apart(a: State, b: State) -> float:  # over what can move
        return states.distance(
            {k: a[k] for k in moved.trainable_names}, {k: b[k] for k in moved.trainable_names}
        )

    assert moved.distance(near) == pytest.approx(apart(moved.state(), center))
    assert moved.distance(far) == pytest.approx(apart(moved.state(), other))
    expected = states.project(moved.state(), center, 0.05)
    assert moved.project(near, 0.05)
    for name, value in expected.items():
        torch.testing.assert_close(moved.state()[name], value)
    assert not moved.project(near, 0.051)


def test_an_evaluation_matches_the_hand_sum() -> None:
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    found = ascent(model).evaluate([(torch.ones(4, 1), torch.tensor([0, 0, 1, 1]))])
    assert found.loss == pytest.approx(0.693147, abs=1e-6)
    assert (found.accuracy, found.classes) == (0.5, 2)
