"""What becomes of a model afterwards: quantised, or taught the leaver's samples again."""

from __future__ import annotations

import torch
from torch import Tensor

from secede import state as states
from secede.data import Samples
from secede.experiments.config import Training
from secede.experiments.setup import Federation
from secede.federation.training import batch_loss, batches, orders, trainable
from secede.seeding import derive, generator, torch_seeded
from secede.state import State
from secede.verification import evaluate

LEVELS = 7  # on each side of zero: four bits, symmetric
CHECK_STEPS = 5  # between two looks at the loss
RELEARNING_EPOCHS = 5  # on the leaver's samples, at most
CHECKED = 500  # of the leaver's samples, whose loss tells when they are learnt again


def quantised(state: State) -> dict[str, Tensor]:
    """Return `state` with each weight of two dimensions or more at fifteen levels of its own."""
    return {name: _rounded(value) for name, value in state.items()}


def _rounded(value: Tensor) -> Tensor:
    largest = value.abs().max() if value.is_floating_point() and value.ndim > 1 else None
    if largest is None or not largest > 0:
        return value.clone()
    step = largest / LEVELS
    return (value / step).round().clamp(-LEVELS, LEVELS) * step


def relearning_steps(
    federation: Federation,
    state: State,
    samples: Samples,
    training: Training,
    seed: int,
    *,
    target: float,
) -> int:
    """Return the steps of training on `samples` until their loss is at most `target`.

    The loss is looked at every few steps, on some of the samples; a model that does not get there
    counts with all the steps that it was given.
    """
    model = federation.engine.fresh_model("relearning")
    states.load_into(model, state)
    optimiser = torch.optim.SGD(
        trainable(model), lr=training.learning_rate, momentum=training.momentum
    )
    watched, steps = samples.take(torch.arange(min(CHECKED, len(samples)))), 0
    if evaluate(model, watched).loss().value <= target:
        return steps
    draw = generator(seed, "relearning")
    with torch_seeded(derive(seed, "relearning", "noise")):
        for order in orders(len(samples), RELEARNING_EPOCHS, draw):
            for inputs, labels in batches(samples, training.batch_size, order):
                model.train()
                optimiser.zero_grad(set_to_none=True)
                loss = torch.nn.functional.cross_entropy
                batch_loss(model, inputs, labels, loss=loss, precision="float32").backward()
                optimiser.step()
                steps += 1
                if steps % CHECK_STEPS == 0 and evaluate(model, watched).loss().value <= target:
                    return steps
    return steps
