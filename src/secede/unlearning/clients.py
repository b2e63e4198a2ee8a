"""Asking several clients at once: one exchange, counted as a round by what each of them did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from secede.federation.cost import Cost
from secede.federation.engine import ClientSide, Engine
from secede.state import State


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a client uploads from a task, how many gradients it took, and its sample count."""

    state: State
    gradient_samples: int
    samples: int


def ask_each(
    engine: Engine,
    clients: Sequence[int],
    task: Callable[[ClientSide], Reply],
    *,
    global_state: State,
    number: int = 0,
) -> tuple[list[Reply], Cost]:
    """Let every client run `task`; return the replies in order and the round's cost.

    `number` names the round's randomness: a method that asks in several rounds gives each its own.
    """
    replies, cost = list[Reply](), Cost()
    for client in clients:
        reply, one = engine.ask(client, task, global_state=global_state, number=number)
        replies.append(reply)
        cost += one
    return replies, replace(cost, rounds=1)
