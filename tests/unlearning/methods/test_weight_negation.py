from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from harness import servers
from secede import state as states
from secede.errors import ConfigError
from secede.unlearning.methods.weight_negation import WeightNegation


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def test_negating_by_hand() -> None:
    # -(1, -2) is (-1, 2); what is not named stays.
    state = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([3.0])}
    found = states.negated(state, ["a"])
    assert found["a"].tolist() == [-1.0, 2.0]
    assert found["b"].tolist() == [3.0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"0.weight", "0.bias"}),
        ({"bias": False}, {"0.weight"}),
        ({"layers": 2}, {"0.weight", "0.bias", "3.weight", "3.bias"}),
        ({"layers": ["5"], "bias": False}, {"5.weight"}),
    ],
)
def test_only_the_chosen_layers_change_their_sign(
    settings: dict[str, Any], expected: set[str]
) -> None:
    at = servers.server(rounds=1)
    state = WeightNegation(**settings).start(at).state
    for name, value in at.global_state.items():
        assert torch.equal(state[name], -value if name in expected else value), name


def test_the_first_layers_outputs_are_turned_round() -> None:
    at = servers.server(rounds=1)
    model = at.fresh_model()
    assert isinstance(model, nn.Sequential)
    inputs = servers.blobs(5, seed=1).x
    states.load_into(model, at.global_state)
    before = model[0](inputs)
    states.load_into(model, WeightNegation().start(at).state)
    torch.testing.assert_close(model[0](inputs), -before)


def test_normalisation_is_no_layer_and_keeps_its_statistics() -> None:
    at = servers.server(rounds=1, make_model=normalised)
    state = WeightNegation(layers=2).start(at).state
    changed = {n for n, value in at.global_state.items() if not torch.equal(state[n], value)}
    assert changed == {"0.weight", "0.bias", "4.weight", "4.bias"}


def test_frozen_layers_are_passed_over() -> None:
    def frozen() -> nn.Module:
        model = servers.network()
        next(iter(model.children())).requires_grad_(False)
        return model

    at = servers.server(rounds=1, make_model=frozen)
    state = WeightNegation().start(at).state
    changed = {n for n, value in at.global_state.items() if not torch.equal(state[n], value)}
    assert changed == {"3.weight", "3.bias"}


def test_the_same_seed_gives_the_same_digest_and_nobody_is_asked() -> None:
    start, after = servers.erase(WeightNegation(), servers.server(rounds=2), rounds=2)
    _, again = servers.erase(WeightNegation(), servers.server(rounds=2), rounds=2)
    assert states.digest(after) == states.digest(again)
    states.check_finite(after)
    assert start.cost.gradient_samples == start.cost.upload_bytes == 0


def test_layers_that_are_not_there_are_named() -> None:
    at = servers.server(rounds=1)
    with pytest.raises(ConfigError, match="layers is 4, but the model has 3"):
        WeightNegation(layers=4).start(at)
    with pytest.raises(ConfigError, match=r"no layer 'conv1' .* expected some of 0, 3, 5"):
        WeightNegation(layers=["conv1"]).start(at)


@pytest.mark.parametrize("layers", [0, True, "0", []])
def test_bad_settings_are_refused(layers: Any) -> None:
    with pytest.raises(ConfigError, match="layers must be"):
        WeightNegation(layers=layers)
