"""Rapid retraining: retrain from scratch with steps scaled by each parameter's curvature.

Liu, Xu, Yuan, Wang, Li 2022, "The Right to be Forgotten in Federated Learning: An Efficient
Realization with Rapid Retraining": the gradient's mean is divided by the mean of the diagonal
empirical Fisher information, both with momentum and bias correction; eta and betas are the paper's.
Our choices: the division is damped (else a flat parameter leaps), the Fisher information is taken
of a part of each batch, with fixed normalisation and no dropout, and momenta restart each round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import ClientSide, Update, aggregate
from secede.federation.training import batch_loss, trainable
from secede.state import State
from secede.unlearning.method import Method, Recovered, Reply, Server, Start, ask_each
from secede.unlearning.steps.fisher import fisher_diagonal


@dataclass(frozen=True, kw_only=True)
class RapidRetrain(Method):
    """Retrain from a fresh state; the retained clients take damped quasi-Newton steps."""

    learning_rate: float = 0.001
    momentum: float = 0.9  # beta 1, of the gradient
    fisher_momentum: float = 0.999  # beta 2, of the squared Fisher diagonal
    damping: float = 0.001  # added to the divisor: the rate is at most learning_rate / damping
    fisher_samples: int = 32  # of each batch, at most

    def __post_init__(self) -> None:
        for key in ("learning_rate", "damping"):
            if not 0 < getattr(self, key) < math.inf:
                raise ConfigError(f"{key} must be above 0 and finite, got {getattr(self, key)}")
        for key in ("momentum", "fisher_momentum"):
            if not 0 <= getattr(self, key) < 1:
                raise ConfigError(f"{key} must be from 0 to below 1, got {getattr(self, key)}")
        if self.fisher_samples < 1:
            raise ConfigError(f"fisher_samples must be 1 or more, got {self.fisher_samples}")

    def start(self, server: Server) -> Start:
        """Return a fresh state."""
        return Start(state=server.fresh_state())

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Let the retained clients train round `number` and average them."""
        replies, cost = ask_each(
            server.engine,
            server.retained,
            lambda side: self.train(side, number),
            global_state=state,
            number=number,
        )
        updates = [
            Update(client, reply.state, reply.samples)
            for client, reply in zip(server.retained, replies, strict=True)
        ]
        return Recovered(state=aggregate(updates), cost=cost, memory=memory)

    def train(self, side: ClientSide, number: int) -> Reply:
        """Train a client for its local epochs in round `number`."""
        model = side.fresh_model(0)
        states.load_into(model, side.global_state)
        optimiser, gradient_count = _QuasiNewton(self, model), 0
        for epoch in range(side.training.epochs):
            pass_number = (number - 1) * side.training.epochs + epoch
            for inputs, labels in side.batches(side.training.batch_size, pass_number):
                chosen = (inputs[: self.fisher_samples], labels[: self.fisher_samples])
                fisher = fisher_diagonal(model, chosen, side.loss)
                model.train()
                loss = batch_loss(model, inputs, labels, loss=side.loss, precision="float32")
                gradients = torch.autograd.grad(loss, optimiser.parameters, materialize_grads=True)
                optimiser.step(gradients, fisher)
                gradient_count += len(labels) + len(chosen[1])
        return Reply(state=states.of(model), gradient_samples=gradient_count, samples=side.samples)


class _QuasiNewton:
    """Damped quasi-Newton steps of one client's local training, and their momenta."""

    def __init__(self, settings: RapidRetrain, model: nn.Module) -> None:
        self.parameters: list[Tensor] = list(trainable(model))
        self._settings, self._count = settings, 0
        self._gradient = [torch.zeros_like(value) for value in self.parameters]
        self._curvature = [torch.zeros_like(value) for value in self.parameters]

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...], fisher: list[Tensor]) -> None:
        """Step by the mean gradient over the root of the mean squared Fisher diagonal."""
        settings, self._count = self._settings, self._count + 1
        squared = torch._foreach_mul(fisher, fisher)
        torch._foreach_lerp_(self._gradient, gradients, 1 - settings.momentum)
        torch._foreach_lerp_(self._curvature, squared, 1 - settings.fisher_momentum)
        divisor = torch._foreach_div(self._curvature, 1 - settings.fisher_momentum**self._count)
        torch._foreach_sqrt_(divisor)
        torch._foreach_add_(divisor, settings.damping)
        rate = settings.learning_rate / (1 - settings.momentum**self._count)
        torch._foreach_addcdiv_(self.parameters, self._gradient, divisor, value=-rate)
