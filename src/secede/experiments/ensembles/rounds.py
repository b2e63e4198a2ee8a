"""Plain rounds of FedAvg, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from secede.federation.engine import Engine, aggregate
from secede.state import State
from secede.unlearning import UpdateHistory


def train_rounds(
    engine: Engine,
    state: State,
    clients: Sequence[int],
    rounds: int,
    *,
    phase: str,
    after_round: Callable[[], None] = lambda: None,
    history: UpdateHistory | None = None,
) -> State:
    """Return `state` after rounds of averaging over the clients; a history keeps their updates."""
    for number in range(1, rounds + 1):
        updates = engine.train_round(state, clients, phase=phase, number=number).updates
        if history is not None:
            history.record(number, state, updates)
        state = aggregate(updates)
        after_round()
    return state
