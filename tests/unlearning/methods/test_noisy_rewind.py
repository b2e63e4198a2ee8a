from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from harness import servers
from harness.recorded import keep, linear_server, weights
from secede import state as states
from secede.errors import ConfigError
from secede.unlearning.method import Server
from secede.unlearning.methods.noisy_rewind import (
    NoisyRewind,
    exact_delta,
    largest_sensitivity,
    sensitivities,
)
from secede.unlearning.registry import METHODS

# sqrt(2 ln(1.25 / DELTA)) is 2, so that the budget is epsilon · sigma / 2.
DELTA = 1.25 * math.exp(-2)


def test_gaps_add_up_and_grow() -> None:
    assert sensitivities((1.0, None, 2.5)) == (0, 1, 1, 3.5)
    assert sensitivities((1.0, None, 2.5), growth=2) == (0, 1, 2, 6.5)
    assert sensitivities((math.inf,)) == (0, math.inf)


def test_the_budget_matches_the_hand_sum() -> None:
    assert largest_sensitivity(sigma=3, epsilon=2, delta=DELTA) == pytest.approx(3)


def integrated_delta(sensitivity: float, sigma: float, epsilon: float) -> float:
    """Return the integral of what one normal density exceeds e^epsilon times the other by."""
    x = torch.linspace(-30 * sigma, 30 * sigma + sensitivity, 400_001, dtype=torch.float64)
    one, other = (torch.exp(-(((x - mean) / sigma) ** 2) / 2) for mean in (sensitivity, 0.0))
    excess = (one - math.exp(epsilon) * other).clamp(min=0) / (sigma * math.sqrt(2 * math.pi))
    return float(torch.trapezoid(excess, x))


@pytest.mark.parametrize(
    ("sensitivity", "sigma", "epsilon"), [(1, 1, 1), (0.5, 2, 0.1), (3, 1, 2), (0.16, 0.05, 10)]
)
def test_the_exact_delta_is_the_integral(sensitivity: float, sigma: float, epsilon: float) -> None:
    expected = integrated_delta(sensitivity, sigma, epsilon)
    assert exact_delta(sensitivity, sigma, epsilon) == pytest.approx(expected, rel=1e-5)


def test_the_published_budget_holds_at_a_small_epsilon_and_not_at_ten() -> None:
    for epsilon, holds in ((0.5, True), (0.9, True), (10.0, False)):
        budget = largest_sensitivity(0.05, epsilon, 0.01)
        assert (exact_delta(budget, 0.05, epsilon) <= 0.01) is holds
    assert exact_delta(0.0, 0.05, 10) == 0
    assert exact_delta(math.inf, 0.05, 10) == 1


def recorded(folder: Path) -> Server:
    """Four rounds, models (1, 0) to (4, 0) before them; the leaver's gaps are 2, none, 2 and 2."""
    at = linear_server(folder)
    for number in range(1, 5):
        # Half of the weight each, 4 and 0: their mean is 2, without the leaver 0.
        leaver = [] if number == 2 else [(0, weights(4, 0), 2)]
        keep(at, number, weights(number, 0), *leaver, (1, weights(0, 0), 2))
    return at


@pytest.mark.parametrize(
    ("sigma", "kept", "bound"), [(0.99, 0, 0.0), (1.0, 2, 2.0), (2.0, 3, 4.0), (9.0, 3, 4.0)]
)
def test_the_last_model_within_the_budget_is_chosen(
    tmp_path: Path, sigma: float, kept: int, bound: float
) -> None:
    # The budget is 4 · sigma / 2; bounds before rounds 1 to 4 are 0, 2, 2 and 4.
    start = NoisyRewind(epsilon=4, delta=DELTA, sigma=sigma, rounds=0).start(recorded(tmp_path))
    assert start.report is not None
    assert start.report["kept_rounds"] == kept
    assert start.report["sensitivity"] == bound
    assert start.report["budget"] == pytest.approx(2 * sigma)
    assert start.report["sensitivity_at_the_end"] == 6
    assert start.report["exact_delta"] == exact_delta(bound, sigma, 4)


def test_the_noise_is_as_large_as_sigma_says_and_from_its_own_draw(tmp_path: Path) -> None:
    at = recorded(tmp_path)
    before = weights(3, 0)["weight"]
    moved = [
        NoisyRewind(epsilon=4 / sigma, delta=DELTA, sigma=sigma, rounds=0).start(at).state["weight"]
        - before
        for sigma in (1.0, 2.0)
    ]
    torch.testing.assert_close(moved[1], 2 * moved[0])
    assert moved[0].abs().min() > 0


def test_the_rest_of_the_training_matches_the_hand_sum(tmp_path: Path) -> None:
    # Without a budget it starts at the first model, (1, 0), without noise: s = 1 / (1 + 1/e) for
    # class 0. The client of class 0 moves by (1 - s, s - 1), that of class 1, three times as heavy,
    # by (-s, s): 1/4 - s together.
    start = NoisyRewind(sigma=1e-9, rounds=1).start(recorded(tmp_path))
    moved = 0.25 - 1 / (1 + math.exp(-1))
    torch.testing.assert_close(start.state["weight"], torch.tensor([[1 + moved], [-moved]]))
    assert (start.cost.rounds, start.cost.gradient_samples) == (1, 4)


def test_by_default_delta_is_one_over_the_clients_and_all_rounds_that_were_left_are_trained(
    tmp_path: Path,
) -> None:
    start = NoisyRewind().start(servers.server(rounds=3, history=tmp_path))
    assert start.report is not None
    assert start.report["delta"] == pytest.approx(1 / 3)
    kept = start.report["kept_rounds"]
    assert start.report["trained_rounds"] == start.cost.rounds == 3 - int(str(kept))


def test_statistics_are_those_of_the_first_model(tmp_path: Path) -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        )

    at = servers.server(rounds=3, history=tmp_path, make_model=normalised)
    assert at.history is not None
    start = NoisyRewind(sigma=99, rounds=0).start(at)
    assert start.report is not None
    assert start.report["kept_rounds"] == 2
    first, later = at.history.before(1)[1], at.history.before(3)[1]
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(start.state[name], first[name])
        assert not torch.equal(start.state[name], later[name])


def test_the_same_seed_gives_the_same_digest(tmp_path: Path) -> None:
    ends = [
        servers.erase(NoisyRewind(sigma=9), servers.server(rounds=3, history=tmp_path / name))[1]
        for name in ("first", "second")
    ]
    assert states.digest(ends[0]) == states.digest(ends[1])
    states.check_finite(ends[0])


def test_it_is_no_method_for_an_erasure() -> None:
    entry = METHODS["noisy-rewind"]
    assert not entry.erases
    assert entry.needs.history
    with pytest.raises(ConfigError, match="noisy-rewind needs the global models"):
        NoisyRewind().check_history(None)


@pytest.mark.parametrize(
    "bad",
    [
        {"epsilon": 0.0},
        {"epsilon": 1e4},
        {"delta": 1.0},
        {"sigma": 0.0},
        {"growth": math.inf},
        {"rounds": -1},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        NoisyRewind(**bad)
