"""Take back: for one ordinary round, the leaver's update counts minus `times` times. Ours.

Everybody trains; the leaver sends the global state minus `times` its update; the mean of all,
weighted by samples, is the new model. So what is taken back grows with the leaver's share p in the
mean, `times`·p of its updates, which nobody needs to know. It uses no labels, no probabilities and
no other client's update, and has one setting. Descends from Mora et al. 2025 (PUF), which takes
back two updates whatever the share (`negated_update.py`): too much of a light leaver, too little
of a heavy one. Its post-training is plain, best with unused weights removed in its first round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from secede.errors import ConfigError
from secede.federation.engine import ClientSide
from secede.unlearning.method import Method, Reply, Server, Start
from secede.unlearning.steps import negate, negated_round

_PHASE = "take-back"  # names the batches of the round


@dataclass(frozen=True, kw_only=True)
class TakeBack(Method):
    """One round in which the leaver's update counts minus `times` times."""

    times: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.times < math.inf:
            raise ConfigError(f"times must be positive and finite, got {self.times}")

    def start(self, server: Server) -> Start:
        """Return the mean of the retained clients' updates and the leaver's, taken back."""
        return negated_round(server, partial(self._negate, self.times), phase=_PHASE)

    @staticmethod
    def _negate(times: float, side: ClientSide) -> Reply:
        """Train a round at the leaver; return the global state minus `times` its update."""
        return negate(side, times)
