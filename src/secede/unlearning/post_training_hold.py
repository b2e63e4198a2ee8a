"""A hold on post-training: averaged rounds may not lead back to the old model.

The idea is FedOSD's (Pan et al. 2025): it takes the way to the old model out of each client's
update. Here it is taken out of the mean, so that it works under secure aggregation, and after any
local step. In the first round, which has most to repair, that is one direction over all weights,
and a fraction may pass, smaller for a heavier leaver; later it may be each neuron's own direction.
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

NO_HOLD_WEIGHT, FULL_HOLD_WEIGHT = 0.02, 0.1  # of a leaver: the hold grows in between
LIGHT_WEIGHT, HEAVY_WEIGHT = 0.2, 0.5  # of a leaver: heaviness grows in between
FIRST_ROUND_SHARE = 0.75  # of the hold, for a light leaver; all of it for a heavy one
MIN_NEURON_SIZE = 16  # entries; a weight with shorter rows has one direction as a whole
_HOLD, _HEAVINESS = "hold fraction", "heaviness"  # in memory, beside parameters


@dataclass(frozen=True, kw_only=True)
class PostTrainingHold(LocalMethod):
    """A local step whose post-training removes a share of the way back to the old model."""

    hold: float = 0.0  # share of the way back to the old model that is removed
    # The share in the first round; "weighed": 75 % of hold, all for a heavy leaver; None: hold.
    hold_first: float | Literal["weighed"] | None = None
    hold_by: Literal["model", "neuron"] = "model"  # whose way back, after the first round

    def check_hold(self) -> None:
        """Raise unless the settings of the hold are in range."""
        if not 0 <= self.hold <= 1:
            raise ConfigError(f"hold must be within 0 and 1, got {self.hold}")
        first = self.hold_first
        if isinstance(first, str):
            if first != "weighed":
                raise ConfigError(f"hold_first must be 'weighed' or within 0 and 1, got {first!r}")
        elif first is not None and not 0 <= first <= 1:
            raise ConfigError(f"hold_first must be within 0 and 1, got {first}")
        if self.hold_by not in ("model", "neuron"):
            raise ConfigError(f"hold_by must be 'model' or 'neuron', got {self.hold_by!r}")

    def start(self, server: Server) -> Start:
        """Ask the leaver for the step; remember the old model."""
        start = LocalMethod.start(self, server)
        if not (self.hold or self._first_share(1.0)):
            return start
        weight = server.weight
        if weight is None:  # only the leaver can know it
            told = (start.report or {}).get("own_weight")
            if isinstance(told, int | float) and math.isfinite(told):
                weight = float(told)
        numbers = {_HOLD: hold_fraction(weight), _HEAVINESS: heaviness(weight)}
        trainable = {n for n, p in server.fresh_model().named_parameters() if p.requires_grad}
        old = {n: value for n, value in server.global_state.items() if n in trainable}
        return replace(start, memory=old | {n: torch.tensor(v) for n, v in numbers.items()})

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Take a round of post-training; remove the way back to the old model."""
        if not memory:
            return average_round(server, state, memory, number)
        share = self._first_share(float(memory[_HEAVINESS])) if number == 1 else self.hold
        share *= float(memory[_HOLD])
        back = {name: value for name, value in memory.items() if name not in (_HOLD, _HEAVINESS)}
        if number == 1:  # from the state after the guard, which may have changed it
            back = states.difference(back, {name: state[name] for name in back})
            memory = {**memory, **back}
        after = average_round(server, state, memory, number)
        state = without_return(
            after.state,
            state,
            back=back,
            share=share,
            by="model" if number == 1 else self.hold_by,
        )
        return replace(after, state=state)

    def _first_share(self, heaviness: float) -> float:
        """Return the share of the way back that is removed in the first round.

        The heavier a leaver, the more of the others' repair leads back to it.
        """
        if self.hold_first == "weighed":
            return self.hold * (FIRST_ROUND_SHARE + (1 - FIRST_ROUND_SHARE) * heaviness)
        return self.hold if self.hold_first is None else self.hold_first


def heaviness(weight: float | None) -> float:
    """Return 0 for a light leaver or an unknown weight, 1 for half of the weight or more."""
    return _ramp(weight or 0.0, LIGHT_WEIGHT, HEAVY_WEIGHT)


def hold_fraction(weight: float | None) -> float:
    """Return the fraction of the hold for a leaver of this weight; 1 if it is unknown or 0.

    There is little to return to from a light leaver, while its step takes as much from the others:
    a full hold would keep them from repairing that. A leaver that missed the last round has weight
    0, which does not tell how light it is.
    """
    return _ramp(weight, NO_HOLD_WEIGHT, FULL_HOLD_WEIGHT) if weight else 1.0


def _ramp(value: float, zero_at: float, one_at: float) -> float:
    return min(1.0, max(0.0, (value - zero_at) / (one_at - zero_at)))


def without_return(
    after: State,
    before: State,
    *,
    back: State,
    share: float = 1.0,
    by: Literal["model", "neuron"] = "model",
) -> dict[str, Tensor]:
    """Return `after` without `share` of the part of its step from `before` along `back`.

    By "model", that is one direction over all weights; by "neuron", one for each row of a weight
    and for each bias.
    """
    if not share:
        return dict(after)
    step = {name: after[name] - before[name] for name in back}
    along: dict[str, float | Tensor]
    if by == "neuron":
        along = {name: _fraction_along(step[name], value) for name, value in back.items()}
    else:
        length = states.inner(back, back)
        fraction = max(0.0, states.inner(step, back) / length) if length else 0.0
        along = dict.fromkeys(back, fraction)
    return {
        name: value - (share * along[name] * back[name]).to(value) if name in back else value
        for name, value in after.items()
    }


def _fraction_along(step: Tensor, back: Tensor) -> Tensor:
    """Return, for each row, the fraction of `back` that its step covers; 0 if it leads away.

    A bias is one row, and so is a weight with short rows: one direction is a large part of few
    entries.
    """
    rows = len(back) if back.ndim > 1 and back.shape[1:].numel() >= MIN_NEURON_SIZE else 1
    step_rows, back_rows = (
        value.double().reshape(rows, back.numel() // max(1, rows)) for value in (step, back)
    )
    length = (back_rows * back_rows).sum(dim=1)
    along = ((step_rows * back_rows).sum(dim=1) / length.where(length > 0, 1.0)).clamp(min=0)
    return along.squeeze(0) if rows == 1 else along.reshape(rows, *[1] * (back.ndim - 1))
