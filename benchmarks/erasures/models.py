"""The trained models of a cell, kept on disk: the original, the retrained, retrained again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.erasures.cells import CLIENTS, LEAVER, RETAINED, Cell, Federation, federation
from secede import state as states
from secede.federation.engine import OwnState, RoundReply, Update, aggregate
from secede.state import State

ORIGINAL, RETRAINED, AGAIN = "original", "retrained", "again"
_PHASES = {ORIGINAL: "training", RETRAINED: "retraining", AGAIN: "retraining-again"}


@dataclass(frozen=True)
class Trained:
    """A federation after its training."""

    cell: Cell
    federation: Federation
    original: State
    retrained: State
    again: State  # retrained from another start: the null


def trained(cell: Cell, folder: Path) -> Trained:
    """Return the cell's models, from the folder if they are there."""
    made = federation(cell)
    found = [_model(made, name, folder / cell.name) for name in _PHASES]
    made.engine.remembers = False
    return Trained(cell, made, *found)


def _model(made: Federation, name: str, folder: Path) -> State:
    file, own = folder / f"{name}.safetensors", folder / "own.safetensors"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        state = train(made, name, made.source.rounds)
        if name == ORIGINAL:
            states.save(made.engine.own[LEAVER].state, own)
        states.save(state, file)
    if name == ORIGINAL:
        weight = len(made.engine.clients[LEAVER]) / sum(map(len, made.engine.clients))
        made.engine.own[LEAVER] = OwnState(states.load(own)[0], weight)
        made.engine.remembers = False
    return states.load(file)[0]


def train(made: Federation, name: str, rounds: int) -> State:
    """Train from scratch: all clients for the original, else the retained ones."""
    phase = _PHASES[name]
    clients: Sequence[int] = range(CLIENTS) if name == ORIGINAL else RETAINED
    state: State = made.engine.initial_state(phase)
    for number in range(1, rounds + 1):
        state = aggregate(
            made.engine.train_round(state, clients, phase=phase, number=number).updates
        )
    return state


class Listening:
    """An engine that remembers the last round's updates, for the removal of unused weights."""

    def __init__(self, made: Federation) -> None:
        self._engine, self.heard = made.engine, tuple[Update, ...]()
        self.ask = made.engine.ask

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Train a round and remember its updates."""
        reply = self._engine.train_round(state, clients, phase=phase, number=number)
        self.heard = reply.updates
        return replace(reply)
