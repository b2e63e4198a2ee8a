from __future__ import annotations

from dataclasses import replace

import torch

from harness import servers
from secede import state as states
from secede.federation.engine import Cost, aggregate
from secede.unlearning.steps import train_retained


def test_rounds_are_those_of_the_engine_under_their_phase_and_number() -> None:
    at = servers.server(rounds=1)
    state, cost = train_retained(at, at.global_state, phase="again", first=3, rounds=2)
    expected = at.global_state
    for number in (3, 4):
        reply = at.engine.train_round(expected, at.retained, phase="again", number=number)
        expected = aggregate(reply.updates)
    assert states.digest(state) == states.digest(expected)
    assert (cost.rounds, cost.gradient_samples) == (2, 2 * (30 + 18))


def test_no_round_changes_nothing_and_costs_nothing() -> None:
    at = servers.server(rounds=1)
    state, cost = train_retained(at, at.global_state, phase="again", first=1, rounds=0)
    assert state is at.global_state
    assert cost == Cost()


def test_updates_are_joined_by_the_servers_mean() -> None:
    at = replace(servers.server(rounds=1), mean=lambda _: {"w": torch.ones(1)})
    state, _ = train_retained(at, at.global_state, phase="again", first=1, rounds=1)
    assert state["w"].item() == 1
