"""Orthogonal steepest descent: unlearn in directions that the retained clients do not feel.

Pan, Wang, Li, Zheng, Wang, Tang, Zhao 2025, "Federated Unlearning with Gradient Descent and
Conflict Mitigation" (FedOSD): 100 rounds, then post-training that does not go back. We upload
full gradients, in evaluation mode; the authors' code uploads an epoch's sum of some 25 at rate
0.0004, hence 0.01 here. It takes the way back out of an update whichever way that points, we only
where it leads back; both keep the update's length. Means are weighted by samples, and clients
recover at the federation's own rate; there both are other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError, StateError
from secede.federation.cost import Cost
from secede.federation.engine import ClientSide, Update, aggregate
from secede.federation.training import Loss
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

# Samples, or as many as in training: sums alone matter. A CPU's caches are full with fewer.
_AT_ONCE = {"cpu": 256, "cuda": 1024}
_NOTHING_LEFT = 1e-6  # of the leaver's gradient: what is below is rounding


@dataclass(frozen=True, kw_only=True)
class OrthogonalDescent(Method):
    """Descend the leaver's unlearning loss at right angles to all retained gradients."""

    rounds: int = 100
    learning_rate: float = 0.01
    decay: float = 0.999  # of the learning rate, each round

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"rounds must be 1 or more, got {self.rounds}")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate must be positive, got {self.learning_rate}")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay must be above 0 and at most 1, got {self.decay}")

    def start(self, server: Server) -> Start:
        """Take the unlearning rounds; remember where they began."""
        state, cost, taken, ended_by = server.global_state, Cost(), 0, "rounds"
        original = _movable(state, server.fresh_model())
        for number in range(1, self.rounds + 1):
            wanted, one = server.engine.ask(
                server.leaver,
                partial(_gradient, number=number, objective=unlearning_loss),
                global_state=state,
                number=number,
            )
            replies, others = ask_each(
                server.engine,
                server.retained,
                partial(_gradient, number=number),
                global_state=state,
                number=number,
            )
            cost = cost + one + others
            step = direction(wanted.state, [reply.state for reply in replies])
            if step is None:
                ended_by = "no-direction"
                break
            rate = self.learning_rate * self.decay ** (number - 1)
            here = {name: state[name] for name in original}
            state = {**state, **states.shifted(here, step, -rate)}
            taken += 1
        states.check_finite(state, "the unlearned model")
        moved = states.distance({name: state[name] for name in original}, original)
        report = {"rounds": taken, "ended_by": ended_by, "distance_to_global": moved}
        return Start(state=state, cost=cost, report=report, memory=original)

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Take a round in which no update leads back to the original model."""
        reply = server.engine.train_round(
            state, server.retained, phase=POST_TRAINING, number=number
        )
        here = {name: state[name] for name in memory}
        back = {name: memory[name].to(value.device) - value for name, value in here.items()}
        kept = [_kept(update, here, back) for update in reply.updates]
        return Recovered(state=aggregate(kept), cost=reply.cost, memory=memory)


def unlearning_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of −log(1 − p/2), p the true class's probability: at most log 2."""
    if outputs.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
        raise ConfigError("orthogonal-descent needs class scores and class labels")
    right = outputs.softmax(dim=1).gather(1, labels[:, None])
    return -torch.log1p(-right / 2).mean()


def direction(wanted: State, others: list[State]) -> dict[str, Tensor] | None:
    """Return what of `wanted` is orthogonal to `others`, as long as `wanted`; None: nothing is."""
    length = states.norm(wanted)
    if not math.isfinite(length):
        raise StateError("a gradient or update is not finite: lower the learning rate")
    free = states.orthogonal_part(wanted, others)
    left = states.norm(free)
    if left <= _NOTHING_LEFT * length:
        return None
    return states.scaled(free, length / left)


def _kept(update: Update, here: State, back: State) -> Update:
    """Return the update without its way back, as long as it was."""
    change = states.difference({name: update.state[name] for name in here}, here)
    if not states.inner(change, back) > 0:  # what is not finite, the mean refuses by its name
        return update
    along = direction(change, [back])
    moved: Mapping[str, Tensor] = here if along is None else states.shifted(here, along)
    return replace(update, state={**update.state, **moved})


def _gradient(side: ClientSide, *, number: int, objective: Loss | None = None) -> Reply:
    """Return the gradient of the client's mean objective, by default the federation's loss."""
    loss = objective or side.loss
    model = side.fresh_model(0)
    states.load_into(model, side.global_state)
    model.eval()
    device, count = next(model.parameters()).device, 0
    size = max(_AT_ONCE.get(device.type, 1), side.training.batch_size)
    for inputs, labels in side.batches(size, number):
        (loss(model(inputs), labels) * len(labels)).backward()
        count += len(labels)
    gradient = {
        name: torch.zeros_like(value) if value.grad is None else value.grad / count
        for name, value in model.named_parameters()
        if value.requires_grad
    }
    return Reply(state=gradient, gradient_samples=count, samples=side.samples)


def _movable(state: State, model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters alone."""
    return {name: state[name] for name, p in model.named_parameters() if p.requires_grad}
