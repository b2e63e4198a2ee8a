"""Negated update: for one round the leaver trains as always and sends the negated update.

Mora, Mazzocca, Montanari, Bellavista 2025, "Federated Unlearning Made Practical: Seamless
Integration via Negated Pseudo-Gradients" (PUF). Mode `regular`: the others train in the same round,
and the mean of all, weighted by samples, is the new model; `special`: nobody else does. The
authors' scripts scale by 20 with ten clients (regular) and by 2 (special): both take back two of
the leaver's updates, so we scale by 2 over its share. Ours: the leaver scales before it sends, and
trains with the global model's normalisation statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from secede.errors import ConfigError
from secede.federation.engine import ClientSide
from secede.unlearning.method import Method, Reply, Server, Start
from secede.unlearning.steps import negated_round, own_change

_PHASE = "negated-update"  # names the batches of the round


@dataclass(frozen=True, kw_only=True)
class NegatedUpdate(Method):
    """One round with the leaver's update negated and scaled."""

    mode: Literal["regular", "special"] = "regular"  # whether the others train in that round
    scale: float | None = None  # None: 2 over the leaver's share in the mean

    def __post_init__(self) -> None:
        if self.mode not in ("regular", "special"):
            raise ConfigError(f"mode must be 'regular' or 'special', got {self.mode!r}")
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ConfigError(f"scale must be positive and finite, got {self.scale}")

    def start(self, server: Server) -> Start:
        """Return the mean of the retained clients and the leaver's negated update."""
        if self.mode == "regular":
            return negated_round(server, partial(self._negate, self.scale), phase=_PHASE)
        task = partial(self._negate, 2.0 if self.scale is None else self.scale)
        negated, cost = server.engine.ask(server.leaver, task, global_state=server.global_state)
        return Start(state=negated.state, cost=replace(cost, rounds=1))

    @staticmethod
    def _negate(scale: float | None, side: ClientSide) -> Reply:
        """Train a round at the leaver; return the global state minus its scaled update."""
        if scale is None:
            if side.own is None or not side.own.weight:
                raise ConfigError(
                    "negated-update: the leaver missed the last round, so it does not know its "
                    "share in the mean; give scale"
                )
            scale = 2 / side.own.weight
        return own_change(side).negated(side, scale)
