"""Orthogonal steepest descent: unlearn orthogonally to the retained clients' gradients.

Pan, Wang, Li, Zheng, Wang, Tang, Zhao 2025, "Federated Unlearning with Gradient Descent and
Conflict Mitigation" (FedOSD): 100 rounds, then post-training that does not lead back. Rates are
those of the published command: the leaver's gradients of an epoch, summed over its batches, at
0.0004; recovery by SGD at 1e-6; both decay by 0.999 a round. Ours: full gradients in evaluation
mode, means weighted by samples, and of an update only what leads back is removed (their code
removes both ways along that line); both keep the update's length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from secede import state as states
from secede.errors import ConfigError, StateError
from secede.federation.engine import ClientSide, Cost, Loss, Update, aggregate
from secede.state import State
from secede.unlearning.method import (
    POST_TRAINING,
    Method,
    Recovered,
    Reply,
    Server,
    Start,
    ask_each,
)
from secede.unlearning.steps import batches_per_epoch, train_client

# Samples per batch, at least the training's: only sums matter. Fewer fill a CPU's caches.
_BATCH_SIZES = {"cpu": 256, "cuda": 1024}
_ROUNDING = 1e-6  # of the gradient's length: a shorter orthogonal part is a rounding error


@dataclass(frozen=True, kw_only=True)
class OrthogonalDescent(Method):
    """Descend the leaver's unlearning loss orthogonally to all retained gradients."""

    rounds: int = 100
    learning_rate: float = 4e-4
    gradient: Literal["sum", "mean"] = "sum"  # over the batches of the leaver's epoch
    decay: float = 0.999  # of both rates, each round
    # Of plain SGD in post-training; "federation": rounds as the federation trained.
    recovery_rate: float | Literal["federation"] = 1e-6

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"rounds must be 1 or more, got {self.rounds}")
        if self.gradient not in ("sum", "mean"):
            raise ConfigError(f"gradient must be 'sum' or 'mean', got {self.gradient!r}")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate must be positive, got {self.learning_rate}")
        recovery = self.recovery_rate
        if recovery != "federation" and not (_is_number(recovery) and 0 < recovery < math.inf):
            raise ConfigError(
                f"recovery_rate must be positive, or 'federation', got {self.recovery_rate!r}"
            )
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay must be above 0 and at most 1, got {self.decay}")

    def start(self, server: Server) -> Start:
        """Take the unlearning rounds; remember the original state."""
        state, cost, rounds, ended_by = server.global_state, Cost(), 0, "rounds"
        named = server.fresh_model().named_parameters()
        original = {name: state[name] for name, p in named if p.requires_grad}
        for number in range(1, self.rounds + 1):
            leaver, leaver_cost = server.engine.ask(
                server.leaver,
                partial(
                    _gradient,
                    number=number,
                    objective=unlearning_loss,
                    summed=self.gradient == "sum",
                ),
                global_state=state,
                number=number,
            )
            replies, retained_cost = ask_each(
                server.engine,
                server.retained,
                partial(_gradient, number=number),
                global_state=state,
                number=number,
            )
            cost = cost + leaver_cost + retained_cost
            step = orthogonal_direction(leaver.state, [reply.state for reply in replies])
            if step is None:
                ended_by = "no-direction"
                break
            rate = self._decayed(self.learning_rate, number)
            parameters = {name: state[name] for name in original}
            state = {**state, **states.shifted(parameters, step, -rate)}
            rounds += 1
        states.check_finite(state, "the unlearned model")
        distance = states.distance({name: state[name] for name in original}, original)
        report = {"rounds": rounds, "ended_by": ended_by, "distance_to_global": distance}
        return Start(state=state, cost=cost, report=report, memory=original)

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Take a round and remove from each update its part towards the original model."""
        updates, cost = self._train(server, state, number)
        start = {name: state[name] for name in memory}
        back = {name: memory[name].to(value.device) - value for name, value in start.items()}
        kept = [_without_way_back(update, start, back) for update in updates]
        return Recovered(state=aggregate(kept), cost=cost, memory=memory)

    def _train(self, server: Server, state: State, number: int) -> tuple[Sequence[Update], Cost]:
        """Let the retained clients train round `number` of post-training."""
        if isinstance(self.recovery_rate, str):
            reply = server.engine.train_round(
                state, server.retained, phase=POST_TRAINING, number=number
            )
            return reply.updates, reply.cost
        number += self.rounds  # the decay goes on, and so do the draws
        rate = self._decayed(self.recovery_rate, number)
        task = partial(train_client, number=number, learning_rate=rate, momentum=0.0)
        replies, cost = ask_each(
            server.engine, server.retained, task, global_state=state, number=number
        )
        pairs = zip(server.retained, replies, strict=True)
        return [Update(client, reply.state, reply.samples) for client, reply in pairs], cost

    def _decayed(self, rate: float, number: int) -> float:
        """Return a rate in round `number`, counted from the first of unlearning."""
        return rate * self.decay ** (number - 1)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def unlearning_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of −log(1 − p/2), with p the true class's probability; at most log 2."""
    if outputs.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
        raise ConfigError(
            "orthogonal-descent needs class labels: expected outputs of shape (n, classes) and "
            "integer labels of shape (n,)"
        )
    right = outputs.softmax(dim=1).gather(1, labels[:, None])
    return -torch.log1p(-right / 2).mean()


def orthogonal_direction(gradient: State, others: list[State]) -> dict[str, Tensor] | None:
    """Return the part of `gradient` orthogonal to `others`, scaled to the length of `gradient`.

    Return None if `gradient` has no such part.
    """
    length = states.norm(gradient)
    if not math.isfinite(length):
        raise StateError("a gradient or update is not finite: lower the learning rate")
    orthogonal = states.orthogonal_part(gradient, others)
    orthogonal_length = states.norm(orthogonal)
    if orthogonal_length <= _ROUNDING * length:
        return None
    return states.scaled(orthogonal, length / orthogonal_length)


def _without_way_back(update: Update, start: State, back: State) -> Update:
    """Return the update without its part along `back`, at its old length."""
    change = states.difference({name: update.state[name] for name in start}, start)
    if not states.inner(change, back) > 0:  # the mean names the client if this is not finite
        return update
    step = orthogonal_direction(change, [back])
    parameters: Mapping[str, Tensor] = start if step is None else states.shifted(start, step)
    return replace(update, state={**update.state, **parameters})


def _gradient(
    side: ClientSide, *, number: int, objective: Loss | None = None, summed: bool = False
) -> Reply:
    """Return the gradient of the client's mean objective, by default the federation's loss.

    With `summed` it is that times the batches of an epoch: to first order, what the client would
    have gone in it at rate 1.
    """
    loss = objective or side.loss
    model = side.fresh_model(0)
    states.load_into(model, side.global_state)
    model.eval()
    device, count = next(model.parameters()).device, 0
    size = max(_BATCH_SIZES.get(device.type, 1), side.training.batch_size)
    for inputs, labels in side.batches(size, number):
        (loss(model(inputs), labels) * len(labels)).backward()
        count += len(labels)
    divisor = count / batches_per_epoch(side) if summed else count
    gradient = {
        name: torch.zeros_like(value) if value.grad is None else value.grad / divisor
        for name, value in model.named_parameters()
        if value.requires_grad
    }
    return Reply(state=gradient, gradient_samples=count, samples=side.samples)
