"""A method that asks the retained clients for what they remember of themselves."""

from __future__ import annotations

from dataclasses import dataclass

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import ClientSide
from secede.state import State
from secede.unlearning.method import (
    Method,
    Recovered,
    Reply,
    Server,
    Start,
    ask_each,
    average_round,
)


@dataclass(frozen=True)
class Recall(Method):
    """Start from the mean of the retained clients' own states, and go half-way back each round."""

    def start(self, server: Server) -> Start:
        """Return the mean of what they have."""
        replies, cost = ask_each(server.engine, server.retained, own, global_state={})
        state = states.mean([reply.state for reply in replies], [1] * len(replies))
        return Start(state=state, cost=cost)

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Train a round and take the mean of where it led and what they have."""
        after = average_round(server, state, memory, number)
        back = self.start(server)
        mixed = states.mean([after.state, back.state], [1, 1])
        return Recovered(state=mixed, cost=after.cost + back.cost, memory=memory)


def own(side: ClientSide) -> Reply:
    """Return a client's own last state."""
    if side.own is None:
        raise ConfigError("it has none")
    return Reply(state=side.own.state, gradient_samples=0, samples=side.samples)
