"""One client's local training: mini-batch SGD, as in section 3 of Halimi et al. 2022.

This is the plain loop that every executor is compared with, in results and in speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede.data.samples import Samples
from secede.errors import ConfigError, StateError
from secede.federation.precision import Precision, forward

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The settings of a client's training in one round; the defaults are the paper's."""

    learning_rate: float = 0.01
    momentum: float = 0.9
    batch_size: int = 128
    epochs: int = 1

    def gradient_samples(self, count: int) -> int:
        """Return the number of per-sample gradients that a client with `count` samples computes."""
        return self.epochs * count


def orders(count: int, epochs: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return an order of `count` samples for each epoch, drawn on the CPU for every device."""
    return tuple(torch.randperm(count, generator=generator) for _ in range(epochs))


def batches(samples: Samples, batch_size: int, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch of mini-batches in the given order; the last one may be smaller."""
    for chosen in order.to(samples.y.device).split(batch_size):
        yield samples.x[chosen], samples.y[chosen]


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters; raise if there are none."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise StateError("the model has no trainable parameters")
    return parameters


def train(
    model: nn.Module,
    samples: Samples,
    training: LocalTraining,
    *,
    orders: Iterable[Tensor],
    loss: Loss = nn.functional.cross_entropy,
    precision: Precision = "float32",
) -> None:
    """Train `model` in place on `samples`, one epoch per order, with a new optimiser."""
    model.train()
    optimiser = torch.optim.SGD(
        trainable(model), lr=training.learning_rate, momentum=training.momentum
    )
    for order in orders:
        for inputs, labels in batches(samples, training.batch_size, order):
            optimiser.zero_grad(set_to_none=True)
            batch_loss(model, inputs, labels, loss=loss, precision=precision).backward()
            optimiser.step()


def batch_loss(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, loss: Loss, precision: Precision
) -> Tensor:
    """Return the loss of one batch."""
    try:
        return loss(forward(model, inputs, precision), labels)
    except ValueError as error:
        if len(inputs) > 1 or "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            "a client's last batch has one sample, but BatchNorm needs two or more: "
            "change training.batch_size or the clients' sizes"
        ) from error
