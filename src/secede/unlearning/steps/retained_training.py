"""Rounds of the retained clients before post-training begins: part of a method's start."""

from __future__ import annotations

from secede.federation.engine import Cost
from secede.state import State
from secede.unlearning.method import Server


def train_retained(
    server: Server, state: State, *, phase: str, first: int, rounds: int
) -> tuple[State, Cost]:
    """Train the retained clients from `state`; return the last mean and the cost.

    `phase` and the rounds' numbers, from `first` on, seed the draws.
    """
    cost = Cost()
    for number in range(first, first + rounds):
        reply = server.engine.train_round(state, server.retained, phase=phase, number=number)
        state, cost = server.mean(reply.updates), cost + reply.cost
    return state, cost
