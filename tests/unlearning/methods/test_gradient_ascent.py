from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from harness import servers
from secede import state as states
from secede.errors import ConfigError, StateError
from secede.unlearning.method import LocalStepMethod, LocalTask
from secede.unlearning.methods.gradient_ascent import GradientAscent


def task() -> LocalTask:
    """One sample x = 1 of class 0; the global model is at zero, the reference elsewhere."""
    return LocalTask(
        global_state={"weight": torch.zeros(2, 1)},
        reference={"weight": torch.ones(2, 1)},
        own_state={"weight": torch.zeros(2, 1)},
        model=nn.Linear(1, 2, bias=False),
        fresh_model=lambda _: nn.Linear(1, 2, bias=False),
        batches=lambda _size, _number: [(torch.ones(1, 1), torch.tensor([0]))],
        loss=nn.functional.cross_entropy,
    )


def test_one_step_from_the_global_model_matches_the_hand_sum() -> None:
    # Softmax is (1/2, 1/2), the loss gradient (-1/2, 1/2), and ascent adds it to zero.
    result = GradientAscent(learning_rate=1.0, epochs=1).unlearn(task())
    torch.testing.assert_close(result.state["weight"], torch.tensor([[-0.5], [0.5]]))
    assert (result.report.steps, result.report.ended_by) == (1, "epochs")
    assert result.report.distance_to_own == pytest.approx(math.sqrt(0.5))
    assert result.gradient_samples == 1


def test_nothing_holds_it_back() -> None:
    near, far = (GradientAscent(learning_rate=1.0, epochs=n).unlearn(task()) for n in (5, 50))
    assert far.report.distance_to_own > 5 * near.report.distance_to_own
    assert near.report.loss is not None
    assert far.report.loss is not None
    assert far.report.loss > near.report.loss > math.log(2)


def test_a_climb_out_of_the_finite_numbers_is_refused() -> None:
    with pytest.raises(StateError, match="gave values that are not finite"):
        GradientAscent(learning_rate=3e38, clip=math.inf, epochs=9).unlearn(task())


def test_the_same_seed_gives_the_same_digest_and_post_training_goes_on() -> None:
    method = LocalStepMethod(GradientAscent(batch_size=8))
    first, after = servers.erase(method, servers.server(rounds=2), rounds=2)
    second, _ = servers.erase(method, servers.server(rounds=2), rounds=0)
    assert states.digest(first.state) == states.digest(second.state)
    states.check_finite(after)
    assert first.cost.gradient_samples == 5 * 24


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="epochs must be positive, got 0"):
        GradientAscent(epochs=0)
