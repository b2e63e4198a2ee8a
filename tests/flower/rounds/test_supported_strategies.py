"""What is no weighted mean of what came is found out, wherever a strategy changes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from harness.flower.small import Federation, initial
from secede import state as states
from secede.errors import ConfigError
from secede.flower import recording
from secede.flower.rounds import supported_strategies

WIDE = {"w": torch.rand(300, 300), "n": torch.tensor(3)}


class Dropping(FedAvg):
    """A mean without one of the replies."""

    def _check_and_log_replies(self, *args: Any, **options: Any) -> Any:
        sound, failed = super()._check_and_log_replies(*args, **options)
        return sound[1:], failed


def test_a_strategy_that_drops_a_reply_is_found_out(federation: Federation) -> None:
    strategy = recording(Dropping(fraction_evaluate=0.0), federation.store, online_timeout=0.3)
    with pytest.raises(ConfigError, match="'Dropping' changes the weighted mean"):
        strategy.start(federation.grid(), ArrayRecord(initial()), num_rounds=1, timeout=5)
    assert federation.store.last_round() is None


def test_one_that_is_changed_on_the_spot_is_looked_at_as_a_whole() -> None:
    updates = [({n: v.clone() for n, v in WIDE.items()}, 1.0) for _ in range(2)]
    aggregate = states.mean([state for state, _ in updates], [1.0, 1.0])
    supported_strategies.check_mean(FedAvg(), aggregate, updates)
    aggregate["w"][7, 7] += 1  # one value of ninety thousand
    patched = FedAvg()
    patched.aggregate_train = lambda *_: (None, None)  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="at 'w'"):
        supported_strategies.check_mean(patched, aggregate, updates)


def test_another_weight_shows_in_the_places_that_are_looked_at() -> None:
    updates = [({n: v + k if n == "w" else v for n, v in WIDE.items()}, 1.0) for k in range(2)]
    aggregate = states.mean([state for state, _ in updates], [1.0, 2.0])
    with pytest.raises(ConfigError, match="at 'w'"):
        supported_strategies.check_mean(FedAvg(), aggregate, updates)


def test_a_check_draws_nothing_from_the_users_generator() -> None:
    before = torch.get_rng_state()
    supported_strategies.check_mean(FedAvg(), WIDE, [(WIDE, 1.0)])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_rounding_is_no_change_however_the_values_cancel(kind: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    made = [
        {"w": (200 * torch.randn(500, generator=draw)).to(kind)} for _ in range(60)
    ]  # sizes of hundreds, means about 0
    weights = [float(n + 1) for n in range(60)]
    share = [weight / sum(weights) for weight in weights]
    summed = made[0]["w"] * share[0]
    for state, part in zip(made[1:], share[1:], strict=True):
        summed = summed + state["w"] * part  # rounded at each step, as NumPy does
    updates = list(zip(made, weights, strict=True))
    supported_strategies.check_mean(FedAvg(), {"w": summed}, updates)
    if kind != torch.float16:
        with pytest.raises(ConfigError):
            supported_strategies.check_mean(FedAvg(), {"w": summed + 0.01}, updates)
