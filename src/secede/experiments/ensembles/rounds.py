"""Plain rounds of FedAvg, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from secede.federation.engine import Engine, Update, aggregate
from secede.state import State

Record = Callable[[int, State, Sequence[Update]], None]  # number, state before, updates


def train_rounds(
    engine: Engine,
    state: State,
    clients: Sequence[int],
    rounds: int,
    *,
    phase: str,
    after_round: Callable[[], None] = lambda: None,
    record: Record | None = None,
) -> State:
    """Return `state` after rounds of averaging over the clients; `record` gets their updates."""
    for number in range(1, rounds + 1):
        updates = engine.train_round(state, clients, phase=phase, number=number).updates
        if record is not None:
            record(number, state, updates)
        state = aggregate(updates)
        after_round()
    return state
