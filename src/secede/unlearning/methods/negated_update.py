"""A negated update: for one round the leaver trains as always and sends the opposite.

Mora, Mazzocca, Montanari, Bellavista 2025, "Federated Unlearning Made Practical: Seamless
Integration via Negated Pseudo-Gradients" (PUF, its regular mode): the others train in the same
round, and the mean of all, weighted by samples, is the new model. The authors' scripts scale by 20
among ten clients, which takes two of the leaver's updates back: so by 2 over its share here. It
scales before it sends, and trains on the global model's normalisation statistics, our choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import ClientSide, Update, aggregate
from secede.unlearning.method import Method, Reply, Server, Start
from secede.unlearning.steps.sgd import Descent

_PHASE = "negated-update"  # names the batches of the round


@dataclass(frozen=True, kw_only=True)
class NegatedUpdate(Method):
    """One round with the leaver's update turned round and scaled."""

    scale: float | None = None  # None: 2 over the leaver's share in the mean

    def __post_init__(self) -> None:
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ConfigError(f"scale must be positive and finite, got {self.scale}")

    def start(self, server: Server) -> Start:
        """Return the mean of the retained clients and the leaver's negated update."""
        opposite, cost = server.engine.ask(
            server.leaver, partial(self._opposite, self.scale), global_state=server.global_state
        )
        reply = server.engine.train_round(
            server.global_state, server.retained, phase=_PHASE, number=1
        )
        left = Update(server.leaver, opposite.state, opposite.samples)
        return Start(state=aggregate((*reply.updates, left)), cost=cost + reply.cost)

    @staticmethod
    def _opposite(scale: float | None, side: ClientSide) -> Reply:
        """Train a round at the leaver; return the global state minus the scaled update."""
        if scale is None:
            if side.own is None or not side.own.weight:
                raise ConfigError(
                    "negated-update: the leaver does not know its share in the mean, or missed the "
                    "last round and has none; give scale"
                )
            scale = 2 / side.own.weight
        how = side.training
        descent = Descent(
            side.fresh_model(0),
            side.global_state,
            learning_rate=how.learning_rate,
            momentum=how.momentum,
            clip=math.inf,
        )
        for epoch in range(1, how.epochs + 1):
            for inputs, labels in side.batches(how.batch_size, epoch):
                descent.step(inputs, labels, side.loss)
        update = states.difference(descent.state(), side.global_state)
        return Reply(
            state=states.shifted(side.global_state, update, -scale),
            gradient_samples=descent.gradient_samples,
            samples=side.samples,
        )
