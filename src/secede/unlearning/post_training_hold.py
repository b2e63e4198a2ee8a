"""Holding on: post-training may not lead back to the old model.

Of each averaged round, the part that leads from where the leaver's step ended back towards the old
model is left out: in the first one, which has most to repair, of all weights together, later of
each neuron's if told so. In the first round a part of it may be let by, the less the heavier the
leaver. That is done on the mean, so it works under secure aggregation, and after any local step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from secede import state as states
from secede.errors import ConfigError
from secede.state import State
from secede.unlearning.method import LocalMethod, Recovered, Server, Start, average_round

FREE, HELD = 0.02, 0.1  # weights of a leaver: nothing is held up to the one, all from the other
FIFTH, HALF = 0.2, 0.5  # weights of a leaver between which it grows heavy
FIRST = 0.75  # of the hold, in the first round, which has most to repair; all for half of the data
SHORTEST = 16  # weights of a neuron that is held by itself
_HELD, _HEAVY = "share that is held", "how heavy the leaver is"  # in memory, beside parameters


@dataclass(frozen=True, kw_only=True)
class Holding(LocalMethod):
    """A local step whose post-training leaves out a share of what leads back."""

    hold: float = 0.0  # share of the way back to the old model that post-training may not go
    # The share in its first round; weighed: most of hold, all for a heavy leaver; None: as hold.
    hold_first: float | Literal["weighed"] | None = None
    hold_by: Literal["model", "neuron"] = "model"  # whose way back it is, after the first round

    def check_hold(self) -> None:
        """Raise unless shares are shares."""
        if not 0 <= self.hold <= 1:
            raise ConfigError(f"hold must be within 0 and 1, got {self.hold}")
        first = self.hold_first
        if isinstance(first, str):
            if first != "weighed":
                raise ConfigError(f"hold_first must be weighed or a share, got {first!r}")
        elif first is not None and not 0 <= first <= 1:
            raise ConfigError(f"hold_first must be within 0 and 1, got {first}")
        if self.hold_by not in ("model", "neuron"):
            raise ConfigError(f"hold_by must be model or neuron, got {self.hold_by!r}")

    def start(self, server: Server) -> Start:
        """Ask the leaver, and remember the old model."""
        start = LocalMethod.start(self, server)
        if not (self.hold or self._first(1.0)):
            return start
        weight = server.weight
        if weight is None:  # then the leaver's word must do
            weight = _share((start.report or {}).get("own_weight"))
        kept = {_HELD: held_share(weight), _HEAVY: heaviness(weight)}
        movable = {n for n, p in server.fresh_model().named_parameters() if p.requires_grad}
        old = {n: value for n, value in server.global_state.items() if n in movable}
        return replace(start, memory=old | {name: torch.tensor(kept[name]) for name in kept})

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Take a round of post-training without its way back to the old model."""
        if not memory:
            return average_round(server, state, memory, number)
        heavy = float(memory[_HEAVY]) if _HEAVY in memory else 0.0  # absent: an older one began
        share = float(memory[_HELD]) * (self._first(heavy) if number == 1 else self.hold)
        back = {name: value for name, value in memory.items() if name not in (_HELD, _HEAVY)}
        if number == 1:  # from where the step was let in: a guard may have moved it
            back = states.difference(back, {name: state[name] for name in back})
            memory = {**memory, **back}
        after = average_round(server, state, memory, number)
        held = without_return(
            after.state,
            state,
            back=back,
            share=share,
            by="model" if number == 1 else self.hold_by,
        )
        return replace(after, state=held)

    def _first(self, heavy: float) -> float:
        """Return how much the first round may not go back.

        The heavier a leaver, the more of what the others would repair is the way back to it.
        """
        if self.hold_first == "weighed":
            return self.hold * (FIRST + (1 - FIRST) * heavy)
        return self.hold if self.hold_first is None else self.hold_first


def _share(told: object) -> float | None:
    return float(told) if isinstance(told, int | float) and math.isfinite(told) else None


def heaviness(weight: float | None) -> float:
    """Return 0 for a leaver that is one of several, or of unknown weight, 1 from half of all on."""
    return min(1.0, max(0.0, ((weight or 0.0) - FIFTH) / (HALF - FIFTH)))


def held_share(weight: float | None) -> float:
    """Return how much of the hold a leaver of this weight is worth; all, if that is not known.

    A light one leaves little to return to, while its step costs the others as much: held, they
    could not bring that back. Who missed the last round has no weight in it: that tells nothing.
    """
    return min(1.0, max(0.0, (weight - FREE) / (HELD - FREE))) if weight else 1.0


def without_return(
    after: State,
    before: State,
    *,
    back: State,
    share: float = 1.0,
    by: Literal["model", "neuron"] = "model",
) -> dict[str, Tensor]:
    """Return `after` without `share` of the part of its step from `before` that goes `back`.

    By model: that part of all weights together. By neuron: of each row of a weight, and each bias.
    """
    if not share:
        return dict(after)
    step = {name: after[name] - before[name] for name in back}
    along: dict[str, float | Tensor]
    if by == "neuron":
        along = {name: _along(step[name], way) for name, way in back.items()}
    else:
        length = states.inner(back, back)
        whole = max(0.0, states.inner(step, back) / length) if length else 0.0
        along = dict.fromkeys(back, whole)
    return {
        name: value - (share * along[name] * back[name]).to(value) if name in back else value
        for name, value in after.items()
    }


def _along(step: Tensor, way: Tensor) -> Tensor:
    """Return how much of each row's way is in its step, 0 if that leads away.

    A bias is one row, and so is a weight with short ones: of few weights one way is a large part.
    """
    rows = len(way) if way.ndim > 1 and way.shape[1:].numel() >= SHORTEST else 1
    steps, ways = (
        value.double().reshape(rows, way.numel() // max(1, rows)) for value in (step, way)
    )
    length = (ways * ways).sum(dim=1)
    along = ((steps * ways).sum(dim=1) / length.where(length > 0, 1.0)).clamp(min=0)
    return along.squeeze(0) if rows == 1 else along.reshape(rows, *[1] * (way.ndim - 1))
