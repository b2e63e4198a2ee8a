"""One round of everybody in which the leaver sends the negated update, scaled by itself.

The mean of all, weighted by samples, is the new model: nobody but the leaver need know who it is,
so it works under secure aggregation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from secede import state as states
from secede.federation.engine import ClientSide, Update, aggregate
from secede.state import State
from secede.unlearning.method import Reply, Server, Start
from secede.unlearning.steps.sgd import Descent


@dataclass(frozen=True)
class OwnChange:
    """What a round of its training changes at the leaver, and the gradients that it took."""

    change: State
    gradient_samples: int

    def negated(self, side: ClientSide, scale: float) -> Reply:
        """Return the reply with the global state minus the scaled change."""
        return Reply(
            state=states.shifted(side.global_state, self.change, -scale),
            gradient_samples=self.gradient_samples,
            samples=side.samples,
        )


def own_change(side: ClientSide) -> OwnChange:
    """Train a round at the leaver, with the global model's normalisation statistics."""
    training = side.training
    descent = Descent(
        side.fresh_model(0),
        side.global_state,
        learning_rate=training.learning_rate,
        momentum=training.momentum,
        clip=math.inf,
    )
    for epoch in range(1, training.epochs + 1):
        for inputs, labels in side.batches(training.batch_size, epoch):
            descent.step(inputs, labels, side.loss)
    change = states.difference(descent.state(), side.global_state)
    return OwnChange(change, descent.gradient_samples)


def negated_round(server: Server, task: Callable[[ClientSide], Reply], *, phase: str) -> Start:
    """Return the mean of the retained clients' updates and the leaver's reply to `task`.

    `phase` seeds the retained clients' batches.
    """
    negated, cost = server.engine.ask(server.leaver, task, global_state=server.global_state)
    reply = server.engine.train_round(server.global_state, server.retained, phase=phase, number=1)
    leaver_update = Update(server.leaver, negated.state, negated.samples)
    return Start(state=aggregate((*reply.updates, leaver_update)), cost=cost + reply.cost)
