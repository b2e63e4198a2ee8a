"""Take back: for one round, the leaver sends a long step against its own training. Ours.

Everybody trains. Along its update, the leaver goes `times` the way that the global model has come
since its first round, but backwards; the mean of all, weighted by samples, is the new model. So
what is taken back is the leaver's share of that way, which nobody needs to know. It uses no
labels, no probabilities and no single update of others. How long the way was, fresh models tell.
Descends from Mora et al. 2025 (PUF, `negated_update.py`), which takes two updates back: too much
where these are long, too little of a heavy leaver and after long training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import ClientSide
from secede.state import State
from secede.unlearning.method import Method, Reply, Server, Start
from secede.unlearning.steps import negated_round, own_change

_PHASE = "take-back"  # names the batches of the round


@dataclass(frozen=True, kw_only=True)
class TakeBack(Method):
    """One round with a step of the leaver's, as long as `times` the model's way, backwards."""

    times: float = 1.5
    way: float | None = None  # distance from the federation's first state; None: see _way

    def __post_init__(self) -> None:
        for name in ("times", "way"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be positive and finite, got {value}")

    def start(self, server: Server) -> Start:
        """Return the mean of the retained clients' updates and the leaver's step back."""
        task = partial(self._step_back, self.times, self.way)
        return negated_round(server, task, phase=_PHASE)

    @staticmethod
    def _step_back(times: float, way: float | None, side: ClientSide) -> Reply:
        """Train a round at the leaver; return the global state minus its lengthened update."""
        own = own_change(side)
        length = states.norm(own.change)
        if not length:
            raise ConfigError("take-back: the leaver's training changes nothing to take back")
        return own.negated(side, times * (_way(side) if way is None else way) / length)


def _way(side: ClientSide) -> float:
    """Return how far the global state lies from the first one, estimated from two fresh ones.

    Training leads away at right angles to where it began, nearly; so the squared distance to a
    fresh state is that of the way and that between two fresh states. Where a fresh model is always
    the same, such as one trained before, this is exact.
    """
    models = (side.fresh_model(0), side.fresh_model(1))
    names = {name for name, value in models[0].named_parameters() if value.requires_grad}
    first, second, now = (
        {name: value for name, value in state.items() if name in names}
        for state in (*map(states.of, models), side.global_state)
    )
    squared = _squared_distance(now, first) - _squared_distance(first, second)
    if squared <= 0:
        raise ConfigError(
            "take-back: the model is as near to a fresh one as two fresh ones are to each other, "
            "so how far it has come is unknown; give way"
        )
    return math.sqrt(squared)


def _squared_distance(a: State, b: State) -> float:
    return states.distance(a, b) ** 2
