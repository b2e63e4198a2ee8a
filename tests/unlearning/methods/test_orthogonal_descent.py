from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from harness import servers
from secede import state as states
from secede.data.samples import Samples
from secede.errors import ConfigError, StateError
from secede.federation.engine import Batch, ClientSide, LocalTraining, Loss, Update
from secede.unlearning.method import Reply, Server
from secede.unlearning.methods import orthogonal_descent
from secede.unlearning.methods.orthogonal_descent import (
    OrthogonalDescent,
    orthogonal_direction,
    unlearning_loss,
)
from secede.unlearning.registry import METHODS


def vector(*values: float) -> dict[str, Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float32)}


def test_a_direction_matches_the_hand_sum() -> None:
    # (3, 4, 12) without its part along (0, 0, 5) is (3, 4, 0), of length 5; stretched to the
    # length of (3, 4, 12), which is 13, it is (7.8, 10.4, 0).
    found = orthogonal_direction(vector(3, 4, 12), [vector(0, 0, 5)])
    assert found is not None
    assert found["w"].tolist() == pytest.approx([7.8, 10.4, 0])


def test_the_loss_matches_the_hand_sum_and_is_bounded() -> None:
    # Probabilities (1/2, 1/2): -log(1 - 1/4) = log(4/3). A sure answer costs log 2, no more.
    label = torch.tensor([0])
    assert unlearning_loss(torch.zeros(1, 2), label).item() == pytest.approx(math.log(4 / 3))
    sure = unlearning_loss(torch.tensor([[90.0, 0.0]]), label)
    assert sure.item() == pytest.approx(math.log(2))
    assert unlearning_loss(torch.tensor([[0.0, 90.0]]), label).item() == pytest.approx(0)


def linear(others: tuple[float, float]) -> Server:
    """All weights zero; the leaver has (1, 0) of class 0 twice, the other one sample of class 1."""
    clients = [
        Samples(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0])),
        Samples(torch.tensor([others]), torch.tensor([1])),
    ]
    return servers.at_zero(clients, training=LocalTraining())


def test_a_step_matches_the_hand_sum() -> None:
    # At zero p = 1/2, and -log(1 - p/2) has the slope (1/2)/(1 - p/2) · p (1 - p) = 1/6 in the
    # label's logit: the mean gradient is g = (1/6, 0 | -1/6, 0). The other's, at (1, 1) of class 1,
    # is (1/2, 1/2 | -1/2, -1/2), of length 1, and g · that = 1/6. Without it (1, -1 | -1, 1)/12 is
    # left, of length 1/6; stretched to the length of g, √2/6, and taken down half a time:
    found = OrthogonalDescent(rounds=1, learning_rate=0.5).start(linear((1.0, 1.0)))
    side = math.sqrt(2) / 24
    expected = torch.tensor([[-side, side], [side, -side]])
    torch.testing.assert_close(found.state["weight"], expected)
    assert found.report is not None
    assert found.report["distance_to_global"] == pytest.approx(2 * side)


def test_a_second_step_is_shorter_by_the_decay() -> None:
    # The other's gradient, at (0, 1), is orthogonal anyway. After the first step of 1 the logits
    # are (-1/6, 1/6): p = 1 / (1 + e^(1/3)), and half of that slope is added.
    found = OrthogonalDescent(rounds=2, learning_rate=1.0, decay=0.5).start(linear((0.0, 1.0)))
    p = 1 / (1 + math.exp(1 / 3))
    moved = 1 / 6 + 0.5 * 0.5 / (1 - p / 2) * p * (1 - p)
    torch.testing.assert_close(found.state["weight"], torch.tensor([[-moved, 0], [moved, 0]]))


def test_the_leavers_gradient_is_summed_over_its_batches_unless_the_mean_is_asked_for() -> None:
    # Five samples in batches of two are three batches: the sum takes three times the mean's step.
    clients = [
        Samples(torch.tensor([[1.0, 0.0]] * 5), torch.zeros(5, dtype=torch.long)),
        Samples(torch.tensor([[0.0, 1.0]]), torch.tensor([1])),
    ]
    moved = {}
    for gradient in ("sum", "mean"):
        at = servers.at_zero(clients, training=LocalTraining(batch_size=2))
        method = OrthogonalDescent(rounds=1, learning_rate=0.5, gradient=gradient)
        moved[gradient] = method.start(at).state["weight"]
    # The mean's slope is 1/6, as above.
    torch.testing.assert_close(moved["mean"], torch.tensor([[-1.0, 0], [1.0, 0]]) / 12)
    torch.testing.assert_close(moved["sum"], 3 * moved["mean"])


def test_a_round_of_recovery_matches_the_hand_sum() -> None:
    # At zero the other's gradient, at (1, 1) of class 1, is (1/2, 1/2 | -1/2, -1/2): descent adds
    # (-1, -1 | 1, 1)/2 times the rate. It is the second round after one: 0.25 · 0.5² = 1/16.
    # The original lies along (0, 0 | 0, -1), which that leads away from, so that nothing is lost.
    at = linear((1.0, 1.0))
    method = OrthogonalDescent(rounds=1, decay=0.5, recovery_rate=0.25)
    original = {"weight": torch.tensor([[0.0, 0.0], [0.0, -1.0]])}
    found = method.recover(at, at.global_state, original, 2)
    expected = torch.tensor([[-1.0, -1.0], [1.0, 1.0]]) / 32
    torch.testing.assert_close(found.state["weight"], expected)
    assert (found.cost.rounds, found.cost.gradient_samples) == (1, 1)


def test_rounds_at_the_federations_rate_are_its_own() -> None:
    # Plain SGD of the federation at 0.01: a step of (-1, -1 | 1, 1)/200.
    at = linear((1.0, 1.0))
    original = {"weight": torch.tensor([[0.0, 0.0], [0.0, -1.0]])}
    found = OrthogonalDescent(recovery_rate="federation").recover(at, at.global_state, original, 1)
    expected = torch.tensor([[-1.0, -1.0], [1.0, 1.0]]) / 200
    torch.testing.assert_close(found.state["weight"], expected)


def test_the_defaults_are_the_published_rates() -> None:
    method = OrthogonalDescent()
    assert (method.rounds, method.learning_rate, method.decay) == (100, 4e-4, 0.999)
    assert method.recovery_rate == 1e-6


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), others=st.integers(1, 5), size=st.integers(6, 40))
def test_what_is_left_is_orthogonal_to_all_and_a_descent(seed: int, others: int, size: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    wanted = {"w": torch.randn(size, generator=draw, dtype=torch.float64)}
    rest = [{"w": torch.randn(size, generator=draw, dtype=torch.float64)} for _ in range(others)]
    rest.append(states.scaled(rest[0], -2.0))  # one that depends on another
    rest.append(states.scaled(rest[0], 0.0))  # and one that is nothing
    part = states.orthogonal_part(wanted, rest)
    for other in rest:
        assert abs(states.inner(part, other)) <= 1e-9 * max(1.0, states.norm(other))
    assert states.inner(part, wanted) == pytest.approx(states.norm(part) ** 2, abs=1e-9)


def test_no_direction_is_left_inside_the_others_span() -> None:
    assert orthogonal_direction(vector(1, 2), [vector(1, 0), vector(1, 1)]) is None
    assert orthogonal_direction(vector(0, 0), [vector(1, 0)]) is None


def test_integer_buffers_are_left_alone() -> None:
    state = {"w": torch.tensor([1.0, 1.0]), "n": torch.tensor(7)}
    part = states.orthogonal_part(state, [{"w": torch.tensor([1.0, 0.0]), "n": torch.tensor(3)}])
    assert part["w"].tolist() == pytest.approx([0, 1])
    assert part["n"].item() == 7


def test_the_first_step_does_not_touch_the_retained_losses() -> None:
    at = servers.server(rounds=3)
    start = OrthogonalDescent(rounds=1, learning_rate=0.1).start(at)
    step = states.difference(start.state, at.global_state)
    for client in at.retained:
        reply, _ = at.engine.ask(
            client,
            lambda side: orthogonal_descent._gradient(side, number=1),
            global_state=at.global_state,
        )
        cosine = states.inner(step, reply.state) / states.norm(step) / states.norm(reply.state)
        assert abs(cosine) < 1e-4


@pytest.mark.parametrize("objective", [None, unlearning_loss])
def test_a_gradient_is_the_same_whatever_is_taken_at_once(
    objective: Loss | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = servers.server(rounds=2)
    sizes = list[int]()

    def asked(side: ClientSide) -> Reply:
        def counted(size: int, number: int) -> Iterator[Batch]:
            for batch in side.batches(size, number):
                sizes.append(len(batch[1]))
                yield batch

        changed = dataclasses.replace(side, batches=counted)
        return orthogonal_descent._gradient(changed, number=1, objective=objective)

    whole, cost = at.engine.ask(1, asked, global_state=at.global_state)
    assert sizes == [30]  # not eight by eight, as clients train
    monkeypatch.setattr(orthogonal_descent, "_BATCH_SIZES", {})
    parts, same = at.engine.ask(1, asked, global_state=at.global_state)
    assert sizes == [30, 8, 8, 8, 6]
    assert cost.gradient_samples == same.gradient_samples == 30
    for name, value in parts.state.items():
        torch.testing.assert_close(whole.state[name], value, atol=1e-7, rtol=1e-5)


def test_an_update_loses_its_way_back_but_not_its_length() -> None:
    # At (0, 0), back to the original leads along (1, 0). The update (3, 4) loses 3 of it and is
    # stretched from 4 to 5. The update (-3, 4) leads away and stays.
    here, back = vector(0, 0), vector(2, 0)
    kept = orthogonal_descent._without_way_back(Update(1, vector(3, 4), 1), here, back)
    assert kept.state["w"].tolist() == pytest.approx([0, 5])
    away = orthogonal_descent._without_way_back(Update(1, vector(-3, 4), 1), here, back)
    assert away.state["w"].tolist() == [-3, 4]
    gone = orthogonal_descent._without_way_back(Update(1, vector(3, 0), 1), here, back)
    assert gone.state["w"].tolist() == [0, 0]


@pytest.mark.parametrize("rate", ["federation", 0.1])
def test_post_training_does_not_come_back(rate: Any) -> None:
    at = servers.server(rounds=3)
    method = OrthogonalDescent(rounds=3, learning_rate=1.0, recovery_rate=rate)
    start = method.start(at)
    one = method.recover(at, start.state, start.memory, 1)
    back = states.difference(start.memory, start.state)
    assert states.inner(states.difference(one.state, start.state), back) <= 1e-6
    again = method.recover(at, start.state, start.memory, 1)
    assert states.digest(one.state) == states.digest(again.state)


def test_the_same_seed_gives_the_same_digest_and_costs_are_counted() -> None:
    method = OrthogonalDescent(rounds=2)
    start, after = servers.erase(method, servers.server(rounds=2), rounds=2)
    _, again = servers.erase(method, servers.server(rounds=2), rounds=2)
    assert states.digest(after) == states.digest(again)
    states.check_finite(after)
    assert start.cost.rounds == 2
    assert start.cost.gradient_samples == 2 * (24 + 30 + 18)
    assert start.report is not None
    assert (start.report["rounds"], start.report["ended_by"]) == (2, "rounds")


def test_statistics_stay_as_they_were_while_unlearning() -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        )

    at = servers.server(rounds=1, make_model=normalised)
    method = OrthogonalDescent(rounds=1)
    start, after = servers.erase(method, at, rounds=1)
    same = {n for n, value in at.global_state.items() if torch.equal(start.state[n], value)}
    assert same == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert set(start.memory) == {n for n, _ in at.fresh_model().named_parameters()}
    states.check_finite(after)


def test_it_says_what_it_needs() -> None:
    needs = METHODS["orthogonal-descent"].needs
    assert needs.leaver_online
    assert needs.single_updates


def test_it_needs_classes_and_finite_gradients() -> None:
    with pytest.raises(ConfigError, match="class labels"):
        unlearning_loss(torch.zeros(1, 2), torch.zeros(1, 2))
    with pytest.raises(StateError, match="not finite"):
        orthogonal_direction(vector(math.inf, 1), [vector(1, 0)])


@pytest.mark.parametrize(
    "bad",
    [
        {"rounds": 0},
        {"learning_rate": 0.0},
        {"decay": 1.5},
        {"recovery_rate": 0.0},
        {"recovery_rate": "own"},
        {"gradient": "half"},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        OrthogonalDescent(**bad)
