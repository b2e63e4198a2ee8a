from __future__ import annotations

import math

import pytest
import torch

from harness import servers
from secede import state as states
from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.federation.engine import Cost, LocalTraining
from secede.unlearning.method import Server
from secede.unlearning.methods.negated_update import NegatedUpdate
from secede.unlearning.methods.take_back import TakeBack
from secede.unlearning.registry import METHODS


def pair(others: int = 3) -> Server:
    """A leaver with one sample x = 1 of class 0, another client with some of class 1; at zero."""
    labels = (torch.tensor([0]), torch.ones(others, dtype=torch.int64))
    clients = [Samples(torch.ones(len(y), 1), y) for y in labels]
    training = LocalTraining(learning_rate=1.0, momentum=0.0, batch_size=16)
    return servers.at_zero(clients, training=training)


def test_one_round_matches_the_hand_sum() -> None:
    # At zero softmax is (1/2, 1/2). The leaver's update is (1/2, -1/2), the other's (-1/2, 1/2).
    # Weights 1/4 and 3/4, ten times: 1/4 * (-10) * 1/2 + 3/4 * (-1/2) = -13/8.
    start = TakeBack().start(pair())
    torch.testing.assert_close(start.state["weight"], torch.tensor([[-13 / 8], [13 / 8]]))


def test_half_the_share_takes_half_as_much_back() -> None:
    # A share of 1/8: 1/8 * (-10) * 1/2 + 7/8 * (-1/2) = -17/16.
    start = TakeBack().start(pair(others=7))
    torch.testing.assert_close(start.state["weight"], torch.tensor([[-17 / 16], [17 / 16]]))


def test_a_leaver_that_missed_the_last_round_need_not_know_its_share() -> None:
    at = pair()
    with pytest.raises(ConfigError, match="the leaver missed the last round"):
        NegatedUpdate().start(at)
    states.check_finite(TakeBack().start(at).state)


def test_the_server_sees_the_mean_alone() -> None:
    assert not METHODS["take-back"].needs.single_updates
    assert not METHODS["take-back"].needs.history


def test_it_costs_one_round_of_everybody() -> None:
    at = servers.server(rounds=1)
    cost = TakeBack().start(at).cost
    bytes_ = 3 * states.size_bytes(at.global_state)
    assert cost == Cost(
        rounds=1,
        upload_bytes=bytes_,
        download_bytes=bytes_,
        gradient_samples=24 + 30 + 18,
        seconds=cost.seconds,
    )


def test_the_same_seed_gives_the_same_digest_and_post_training_goes_on() -> None:
    _, after = servers.erase(TakeBack(), servers.server(rounds=2), rounds=2)
    _, again = servers.erase(TakeBack(), servers.server(rounds=2), rounds=2)
    assert states.digest(after) == states.digest(again)
    states.check_finite(after)


@pytest.mark.parametrize("times", [0.0, -1.0, math.inf, math.nan])
def test_bad_settings_are_refused(times: float) -> None:
    with pytest.raises(ConfigError, match="times must be positive and finite"):
        TakeBack(times=times)
