from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness import servers
from secede import state as states
from secede.errors import ConfigError
from secede.unlearning.method import LocalMethod
from secede.unlearning.methods.projected_ascent import ProjectedAscent
from secede.unlearning.methods.second_choice import SecondChoice
from secede.unlearning.methods.virtual_teacher import VirtualTeacher
from secede.unlearning.post_training_hold import (
    _HOLD,
    MIN_NEURON_SIZE,
    PostTrainingHold,
    hold_fraction,
    without_return,
)

ASCENT = ProjectedAscent(stop_distance=1.0, batch_size=8)
STEPS = (SecondChoice(), VirtualTeacher(batch_size=8), ASCENT)


def named(step: PostTrainingHold) -> str:
    return type(step).__name__


def test_the_way_back_is_taken_out_of_a_step_and_nothing_else() -> None:
    before = {"w": torch.tensor([0.0, 0.0]), "b": torch.tensor([1.0])}
    after = {"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([2.0])}
    # The step (3, 4) has 3/2 of the way back (2, 0) in it; without it, (0, 4) is left.
    found = without_return(after, before, back={"w": torch.tensor([2.0, 0.0])})
    torch.testing.assert_close(found["w"], torch.tensor([0.0, 4.0]))
    assert found["b"] is after["b"]
    away = without_return(after, before, back={"w": torch.tensor([-2.0, 0.0])})
    torch.testing.assert_close(away["w"], after["w"])


def rows(*firsts: tuple[float, float], length: int = MIN_NEURON_SIZE) -> Tensor:
    """Return rows that begin with two numbers each; the rest is zero."""
    return nn.functional.pad(torch.tensor(firsts), (0, length - 2))


def test_by_neuron_each_rows_way_back_is_taken_out() -> None:
    back = {
        "w": rows((2.0, 0.0), (2.0, 0.0), (0.0, 0.0)),
        "b": torch.tensor([1.0, 1.0]),
        "s": torch.tensor(4.0),
    }
    before = {name: torch.zeros_like(value) for name, value in back.items()}
    after = {
        "w": rows((3.0, 4.0), (-9.0, 1.0), (5.0, 6.0)),
        "b": torch.tensor([3.0, -1.0]),
        "s": torch.tensor(1.0),
    }
    # Half of the way back: (3, 4) has 3/2 of (2, 0) in it and keeps (1.5, 4); (-9, 1) leads away
    # and stays, and so does a row without a way back. The bias (3, -1) is one row, with (1, 1) in
    # it once; the scalar has a quarter of its way in it. All rows together lead away.
    held = without_return(after, before, back=back, share=0.5, by="neuron")
    torch.testing.assert_close(held["w"], rows((1.5, 4.0), (-9.0, 1.0), (5.0, 6.0)))
    torch.testing.assert_close(held["b"], torch.tensor([2.5, -1.5]))
    torch.testing.assert_close(held["s"], torch.tensor(0.5))
    whole = without_return({"w": after["w"]}, before, back={"w": back["w"]})
    torch.testing.assert_close(whole["w"], after["w"])


def test_fifteen_weights_are_a_short_row_and_sixteen_are_not() -> None:
    # By row, (1, 0) keeps nothing of its way and (-1, 0) all; together they have none in them.
    for length, expected in ((15, [1.0, -1.0]), (16, [0.0, -1.0])):
        back, after = (
            rows((1.0, 0.0), (1.0, 0.0), length=length),
            rows((1.0, 0.0), (-1.0, 0.0), length=length),
        )
        before = {"w": torch.zeros(2, length)}
        held = without_return({"w": after}, before, back={"w": back}, by="neuron")
        assert held["w"][:, 0].tolist() == expected


def test_nothing_held_is_nothing_done_and_no_rows_are_no_fault() -> None:
    after, before = {"w": torch.ones(2, 16)}, {"w": torch.zeros(2, 16)}
    free = without_return(after, before, back={"w": torch.full((2, 16), math.inf)}, share=0.0)
    assert free["w"] is after["w"]
    none = {"w": torch.zeros(0, 16)}
    assert without_return(none, none, back=none, by="neuron")["w"].shape == (0, 16)


def test_short_rows_are_held_together() -> None:
    # (3, 4) and (1, 1) have (3 + 1) · 2 / 8 = 1 of the way back (2, 0), (2, 0) in them.
    back, after = rows((2.0, 0.0), (2.0, 0.0), length=2), rows((3.0, 4.0), (1.0, 1.0), length=2)
    before = {"w": torch.zeros(2, 2)}
    held = without_return({"w": after}, before, back={"w": back}, by="neuron")
    torch.testing.assert_close(held["w"], rows((1.0, 4.0), (-1.0, 1.0), length=2))


@pytest.mark.parametrize("step", STEPS, ids=named)
def test_held_post_training_never_moves_back(step: PostTrainingHold) -> None:
    server = servers.server()
    start = replace(step, hold=1.0).start(server)
    back = states.difference(server.global_state, start.state)
    plain = replace(step, hold=0.0, hold_first=0.0)
    assert not plain.start(server).memory

    def moved_back(memory: states.State, first: float) -> float:
        held = replace(step, hold=1.0, hold_first=first)
        after = held.recover(server, start.state, memory, 1)
        return states.inner(states.difference(after.state, start.state), back)

    whole = moved_back({}, 0.0)
    assert whole > 1e-3
    assert moved_back(start.memory, 1.0) == pytest.approx(0, abs=1e-4)
    assert moved_back(start.memory, 0.75) == pytest.approx(whole / 4, rel=1e-2)
    assert moved_back(start.memory, 0.0) == pytest.approx(whole, rel=1e-3)


def test_later_rounds_hold_in_full_the_way_that_the_first_began_from() -> None:
    server, step = servers.server(), SecondChoice(hold_by="model")
    start = step.start(server)
    back = states.difference(server.global_state, start.state)
    first = step.recover(server, start.state, start.memory, 1)
    second = step.recover(server, first.state, first.memory, 2)
    assert second.memory.keys() == first.memory.keys() == start.memory.keys()
    step_two = states.difference(second.state, first.state)
    assert states.inner(step_two, back) == pytest.approx(0, abs=1e-4)


def test_later_rounds_hold_each_neuron_and_the_first_one_all_together() -> None:
    server, step = servers.server(), SecondChoice()
    start = step.start(server)
    back = states.difference(server.global_state, start.state)
    first = step.recover(server, start.state, start.memory, 1)
    together = replace(step, hold_by="model").recover(server, start.state, start.memory, 1)
    assert states.digest(first.state) == states.digest(together.state)
    second = step.recover(server, first.state, first.memory, 2)
    together = replace(step, hold_by="model").recover(server, first.state, first.memory, 2)
    assert states.digest(second.state) != states.digest(together.state)

    def furthest_back(after: states.State) -> float:
        moved = states.difference(after, first.state)
        long = [
            n for n in back if back[n].ndim > 1 and back[n].shape[1:].numel() >= MIN_NEURON_SIZE
        ]
        return float(torch.cat([(moved[n] * back[n]).flatten(1).sum(dim=1) for n in long]).max())

    assert furthest_back(together.state) > 1e-5
    assert furthest_back(second.state) == pytest.approx(0, abs=1e-6)


def test_a_state_that_the_guard_moved_is_held_where_it_was_let_in() -> None:
    server, step = servers.server(), SecondChoice(hold_first=1.0)
    start = step.start(server)
    way = states.difference(server.global_state, start.state)
    nearer = states.shifted(start.state, way, 0.5)
    after = step.recover(server, nearer, start.memory, 1)
    back = states.difference(server.global_state, nearer)
    assert states.inner(states.difference(after.state, nearer), back) == pytest.approx(0, abs=1e-4)
    torch.testing.assert_close({n: after.memory[n] for n in back}, back)


@pytest.mark.parametrize(
    ("weight", "held"),
    [(0.01, 0.0), (0.02, 0.0), (0.04, 0.25), (0.1, 1.0), (0.5, 1.0), (0.0, 1.0), (None, 1.0)],
)
def test_a_light_leaver_holds_less(weight: float | None, held: float) -> None:
    assert hold_fraction(weight) == pytest.approx(held)


@pytest.mark.parametrize(
    ("weight", "share"), [(0.2, 0.75), (0.35, 0.875), (0.5, 1.0), (0.9, 1.0), (0.0, 0.75)]
)
def test_the_first_round_holds_the_more_the_heavier_the_leaver(weight: float, share: float) -> None:
    server = replace(servers.server(), weight=weight)
    start = SecondChoice().start(server)
    weighed = SecondChoice().recover(server, start.state, start.memory, 1)
    told = SecondChoice(hold_first=share).recover(server, start.state, start.memory, 1)
    torch.testing.assert_close(weighed.state, told.state)
    other = SecondChoice(hold_first=share - 0.1).recover(server, start.state, start.memory, 1)
    assert states.digest(other.state) != states.digest(told.state)


def test_without_a_hold_the_first_round_is_free_too() -> None:
    assert not SecondChoice(hold=0.0).start(servers.server()).memory
    server = replace(servers.server(), weight=0.5)
    start = SecondChoice(hold=0.5).start(server)
    half = SecondChoice(hold=0.5).recover(server, start.state, start.memory, 1)
    told = SecondChoice(hold_first=0.5).recover(server, start.state, start.memory, 1)
    assert states.digest(half.state) == states.digest(told.state)


@pytest.mark.parametrize(("told", "held"), [(1, 1.0), (0.02, 0.0), (math.nan, 1.0), (None, 1.0)])
def test_where_the_server_knows_no_weight_the_leaver_s_word_counts_if_it_is_one(
    monkeypatch: pytest.MonkeyPatch, told: float | None, held: float
) -> None:
    server, step = servers.server(), SecondChoice()
    begun = LocalMethod.start(step, server)
    lied = replace(begun, report={**(begun.report or {}), "own_weight": told})
    monkeypatch.setattr(LocalMethod, "start", lambda *_: lied)
    memory = step.start(server).memory
    assert float(memory[_HOLD]) == held


def test_post_training_after_a_light_leaver_is_free() -> None:
    clients = [servers.blobs(4 if i == 0 else 200, seed=i) for i in range(3)]
    server = servers.server(clients=clients)
    start = SecondChoice().start(server)
    held = SecondChoice().recover(server, start.state, start.memory, 1)
    free = SecondChoice(hold=0.0, hold_first=0.0).recover(server, start.state, {}, 1)
    assert states.digest(held.state) == states.digest(free.state)


def test_the_server_believes_its_own_record_of_the_weight() -> None:
    # The leaver's report says a third; the server knows better.
    server = replace(servers.server(), weight=0.02)
    step = SecondChoice()
    start = step.start(server)
    held = step.recover(server, start.state, start.memory, 1)
    free = step.recover(server, start.state, {}, 1)
    assert states.digest(held.state) == states.digest(free.state)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"hold": 1.5}, "hold must be within 0 and 1, got 1.5"),
        ({"hold_first": -0.1}, "hold_first must be within 0 and 1, got -0.1"),
        ({"hold_first": "heavy"}, "hold_first must be 'weighed' or within 0 and 1, got 'heavy'"),
        ({"hold_first": math.nan}, "hold_first must be within 0 and 1, got nan"),
        ({"hold_by": "layer"}, "hold_by must be 'model' or 'neuron', got 'layer'"),
    ],
)
@pytest.mark.parametrize("step", STEPS, ids=named)
def test_bad_settings_are_refused(
    step: PostTrainingHold, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        replace(step, **settings)
