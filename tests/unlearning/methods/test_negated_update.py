from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from harness import servers
from secede import state as states
from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.federation.engine import Cost, LocalTraining
from secede.unlearning.method import Server
from secede.unlearning.methods.negated_update import NegatedUpdate
from secede.unlearning.registry import METHODS


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def pair() -> Server:
    """A leaver with one sample x = 1 of class 0, another client with three of class 1; at zero."""
    labels = (torch.tensor([0]), torch.tensor([1, 1, 1]))
    clients = [Samples(torch.ones(len(y), 1), y) for y in labels]
    training = LocalTraining(learning_rate=1.0, momentum=0.0, batch_size=8)
    return servers.at_zero(clients, training=training)


def test_one_round_matches_the_hand_sum() -> None:
    # At zero softmax is (1/2, 1/2). The leaver's update is (1/2, -1/2), the other's (-1/2, 1/2).
    # Weights 1/4 and 3/4, scale 2: 1/4 * (-2) * 1/2 + 3/4 * (-1/2) = -5/8.
    start = NegatedUpdate(scale=2.0).start(pair())
    torch.testing.assert_close(start.state["weight"], torch.tensor([[-5 / 8], [5 / 8]]))


def test_by_default_twice_the_leavers_share_is_taken_back() -> None:
    # Its share in the last mean is 1/4, so the scale is 8: 1/4 * (-8) * 1/2 + 3/4 * (-1/2) = -11/8.
    at = pair()
    at.engine.train_round(at.global_state, (0, 1), phase="training", number=1)
    start = NegatedUpdate().start(at)
    torch.testing.assert_close(start.state["weight"], torch.tensor([[-11 / 8], [11 / 8]]))


def test_in_special_mode_the_leavers_update_is_taken_back_twice_and_nobody_else_trains() -> None:
    # The leaver's update is (1/2, -1/2), as above; its share does not matter.
    start = NegatedUpdate(mode="special").start(pair())
    torch.testing.assert_close(start.state["weight"], torch.tensor([[-1.0], [1.0]]))
    assert (start.cost.rounds, start.cost.gradient_samples) == (1, 1)
    half = NegatedUpdate(mode="special", scale=1.0).start(pair())
    torch.testing.assert_close(half.state["weight"], torch.tensor([[-0.5], [0.5]]))


def test_the_leaver_sends_what_is_already_scaled() -> None:
    at = pair()
    reply, _ = at.engine.ask(0, partial(NegatedUpdate._negate, 2.0), global_state=at.global_state)
    torch.testing.assert_close(reply.state["weight"], torch.tensor([[-1.0], [1.0]]))
    assert (reply.samples, reply.gradient_samples) == (1, 1)
    assert not METHODS["negated-update"].needs.single_updates


def test_it_costs_one_round_of_everybody() -> None:
    at = servers.server(rounds=1)
    cost = NegatedUpdate().start(at).cost
    bytes_ = 3 * states.size_bytes(at.global_state)
    assert cost == Cost(
        rounds=1,
        upload_bytes=bytes_,
        download_bytes=bytes_,
        gradient_samples=24 + 30 + 18,
        seconds=cost.seconds,
    )


def test_the_leaver_sends_no_statistics_of_its_own() -> None:
    at = servers.server(rounds=1, make_model=normalised)
    reply, _ = at.engine.ask(0, partial(NegatedUpdate._negate, 20.0), global_state=at.global_state)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(reply.state[name], at.global_state[name])
    assert not torch.equal(reply.state["0.weight"], at.global_state["0.weight"])


def test_the_same_seed_gives_the_same_digest_and_post_training_goes_on() -> None:
    _, after = servers.erase(NegatedUpdate(), servers.server(rounds=2), rounds=2)
    _, again = servers.erase(NegatedUpdate(), servers.server(rounds=2), rounds=2)
    assert states.digest(after) == states.digest(again)
    states.check_finite(after)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_bad_settings_are_refused(scale: float) -> None:
    with pytest.raises(ConfigError, match="scale must be positive and finite"):
        NegatedUpdate(scale=scale)
