from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from harness import servers
from secede import state as states
from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.federation.engine import ClientSide, Cost, LocalTraining
from secede.unlearning.method import Server
from secede.unlearning.methods import take_back
from secede.unlearning.methods.take_back import TakeBack
from secede.unlearning.registry import METHODS


def pair(others: int = 3) -> Server:
    """A leaver with one sample x = 1 of class 0, another client with some of class 1; at zero."""
    labels = (torch.tensor([0]), torch.ones(others, dtype=torch.int64))
    clients = [Samples(torch.ones(len(y), 1), y) for y in labels]
    training = LocalTraining(learning_rate=1.0, momentum=0.0, batch_size=16)
    return servers.at_zero(clients, training=training)


def side(values: list[float], *fresh: list[float]) -> ClientSide:
    """A client whose global state has `values`, and whose n-th fresh model the n-th of `fresh`."""

    def made(number: int) -> nn.Module:
        model = nn.Linear(2, 1, bias=False)
        model.weight.data = torch.tensor([fresh[number]])
        return model

    return ClientSide(
        global_state={"weight": torch.tensor([values])},
        own=None,
        samples=1,
        training=LocalTraining(),
        fresh_model=made,
        batches=lambda _size, _number: [],
        loss=nn.functional.cross_entropy,
    )


def test_one_round_matches_the_hand_sum() -> None:
    # At zero softmax is (1/2, 1/2). The leaver's update is (1/2, -1/2), of length 1/√2; twice a way
    # of √2 is 4 of them. The other's is (-1/2, 1/2). Weights 1/4 and 3/4:
    # 1/4 * (-4) * 1/2 + 3/4 * (-1/2) = -7/8.
    start = TakeBack(times=2.0, way=math.sqrt(2)).start(pair())
    torch.testing.assert_close(start.state["weight"], torch.tensor([[-7 / 8], [7 / 8]]))


def test_half_the_share_takes_half_as_much_back() -> None:
    # A share of 1/8: 1/8 * (-4) * 1/2 + 7/8 * (-1/2) = -11/16.
    start = TakeBack(times=2.0, way=math.sqrt(2)).start(pair(others=7))
    torch.testing.assert_close(start.state["weight"], torch.tensor([[-11 / 16], [11 / 16]]))


def test_the_way_follows_from_pythagoras() -> None:
    # Fresh states (1, 0) and (1, 1) are 1 apart; (4, 4) is 5 from the first: √(25 - 1).
    assert take_back._way(side([4.0, 4.0], [1.0, 0.0], [1.0, 1.0])) == pytest.approx(math.sqrt(24))


def test_the_way_from_a_model_that_is_always_the_same_is_exact() -> None:
    assert take_back._way(side([4.0, 4.0], [1.0, 0.0], [1.0, 0.0])) == pytest.approx(5)


def test_the_way_is_found_from_other_draws_than_the_first_state() -> None:
    draw = torch.Generator().manual_seed(0)
    first, fresh, other, moved = torch.randn(4, 10_000, generator=draw)
    at = side((first + moved).tolist(), fresh.tolist(), other.tolist())
    true = float(torch.linalg.vector_norm(moved))
    assert take_back._way(at) == pytest.approx(true, rel=0.05)


def test_a_model_that_went_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="how far it has come is unknown; give way"):
        take_back._way(side([1.0, 0.0], [1.0, 0.0], [0.0, 1.0]))


def test_a_leaver_whose_training_changes_nothing_is_refused() -> None:
    at = side([4.0, 4.0], [1.0, 0.0], [1.0, 0.0])
    with pytest.raises(ConfigError, match="changes nothing to take back"):
        TakeBack._step_back(2.0, None, at)


@pytest.mark.parametrize(("times", "way"), [(2.0, 3.0), (1.0, 3.0), (2.0, 0.5)])
def test_the_step_is_as_long_as_so_often_the_way(times: float, way: float) -> None:
    at = servers.server(rounds=2)
    task = partial(TakeBack._step_back, times, way)
    reply, _ = at.engine.ask(0, task, global_state=at.global_state)
    assert states.distance(reply.state, at.global_state) == pytest.approx(times * way)


def test_the_server_sees_the_mean_alone() -> None:
    assert not METHODS["take-back"].needs.single_updates
    assert not METHODS["take-back"].needs.history


def test_it_costs_one_round_of_everybody() -> None:
    at = servers.server(rounds=1)
    cost = TakeBack(way=1.0).start(at).cost
    bytes_ = 3 * states.size_bytes(at.global_state)
    assert cost == Cost(
        rounds=1,
        upload_bytes=bytes_,
        download_bytes=bytes_,
        gradient_samples=24 + 30 + 18,
        seconds=cost.seconds,
    )


def test_the_same_seed_gives_the_same_digest_and_post_training_goes_on() -> None:
    _, after = servers.erase(TakeBack(), servers.server(rounds=4), rounds=2)
    _, again = servers.erase(TakeBack(), servers.server(rounds=4), rounds=2)
    assert states.digest(after) == states.digest(again)
    states.check_finite(after)


BAD = [0.0, -1.0, math.inf, math.nan]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("make", [lambda v: TakeBack(times=v), lambda v: TakeBack(way=v)])
def test_bad_settings_are_refused(value: float, make: Callable[[float], TakeBack]) -> None:
    with pytest.raises(ConfigError, match="must be positive and finite"):
        make(value)
