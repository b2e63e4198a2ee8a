from __future__ import annotations

import pytest
import torch
from torch import nn

from secede.errors import ConfigError
from secede.unlearning.api import reinitialised
from secede.unlearning.steps.radius import third_of_distance_to_fresh


def constant(value: float) -> nn.Module:
    model = nn.Linear(2, 2, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def test_the_radius_is_a_third_of_the_mean_plain_distance() -> None:
    # Fresh models at 1, 2, ..., 10 in each of four weights: distances 2n, mean 11, a third 11/3.
    reference = {"weight": torch.zeros(2, 2)}
    radius = third_of_distance_to_fresh(reference, lambda n: constant(float(n)), ["weight"])
    assert radius == pytest.approx(11 / 3)


def test_only_what_can_move_counts() -> None:
    def fresh(_: int) -> nn.Module:
        return nn.Sequential(constant(3.0), nn.BatchNorm1d(2))

    reference = {k: v + 7 * (k != "0.weight") for k, v in fresh(0).state_dict().items()}
    reference["0.weight"] = torch.zeros(2, 2)
    assert third_of_distance_to_fresh(reference, fresh, ["0.weight"]) == pytest.approx(2.0)


def test_fresh_models_that_equal_the_reference_give_no_radius() -> None:
    with pytest.raises(ConfigError, match="give radius="):
        third_of_distance_to_fresh(
            {"weight": torch.ones(2, 2)}, lambda _: constant(1.0), ["weight"]
        )


def test_copies_are_reset_by_their_layers_and_repeat_by_seed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    fresh = reinitialised(model, 5)
    one, again, other = fresh(1), fresh(1), fresh(2)
    weights = [m.state_dict()["0.weight"] for m in (one, again, other, model)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[3])


def test_frozen_layers_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    assert torch.equal(
        reinitialised(model, 0)(1).state_dict()["0.weight"], model.state_dict()["0.weight"]
    )


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def test_a_layer_that_cannot_be_reset_asks_for_a_factory() -> None:
    with pytest.raises(ConfigError, match="pass fresh_model= "):
        reinitialised(nn.Sequential(Bare()), 0)(1)


def test_a_fresh_model_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="without the parameter 'bias', expected the same arch"):
        third_of_distance_to_fresh({}, lambda _: constant(1.0), ["bias"])
