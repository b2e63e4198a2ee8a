"""A client's plain training as a task: at a rate of its own, or for a part of a round's batches.

Methods whose rounds are not the federation's use it. It is the round's loop of SGD, without an
executor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import torch

from secede import state as states
from secede.federation.engine import Batch, ClientSide
from secede.federation.training import batch_loss, trainable
from secede.unlearning.method import Reply


def train_client(
    side: ClientSide,
    *,
    number: int,
    learning_rate: float,
    momentum: float,
    share: float = 1.0,
) -> Reply:
    """Train on `share` of a round's batches from the global state; `number` seeds their order."""
    model = side.fresh_model(0)
    states.load_into(model, side.global_state)
    optimiser = torch.optim.SGD(trainable(model), lr=learning_rate, momentum=momentum)
    model.train()
    gradients = 0
    for inputs, labels in islice(_passes(side, number), _steps(side, share)):
        optimiser.zero_grad(set_to_none=True)
        batch_loss(model, inputs, labels, loss=side.loss, precision="float32").backward()
        optimiser.step()
        gradients += len(labels)
    return Reply(state=states.of(model), gradient_samples=gradients, samples=side.samples)


def batches_per_epoch(side: ClientSide) -> int:
    """Return how many batches the client's samples make in its training."""
    return math.ceil(side.samples / side.training.batch_size)


def _steps(side: ClientSide, share: float) -> int:
    all_steps = side.training.epochs * batches_per_epoch(side)
    return math.ceil(round(share * all_steps, 9))  # 0.1 · 30 is slightly above 3


def _passes(side: ClientSide, number: int) -> Iterator[Batch]:
    for epoch in range(side.training.epochs):
        yield from side.batches(side.training.batch_size, number * side.training.epochs + epoch)
