"""One client's local training: mini-batch SGD as section 3 of the paper has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede.data.samples import Samples
from secede.errors import ConfigError, StateError

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains in one round; the defaults are the paper's."""

    learning_rate: float = 0.01
    momentum: float = 0.9
    batch_size: int = 128
    epochs: int = 1

    def gradient_samples(self, count: int) -> int:
        """Return how many per-sample gradients a client with `count` samples computes."""
        return self.epochs * count


def batches(
    samples: Samples, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch of mini-batches in random order; the last one may be smaller."""
    order = torch.randperm(len(samples), generator=generator).to(samples.y.device)
    for chosen in order.split(batch_size):
        yield samples.x[chosen], samples.y[chosen]


def train(
    model: nn.Module,
    samples: Samples,
    how: LocalTraining,
    *,
    generator: torch.Generator,
    loss: Loss = nn.functional.cross_entropy,
) -> None:
    """Train `model` in place on `samples`, with a fresh optimiser."""
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise StateError("the model has no parameter that requires a gradient: nothing to train")
    optimiser = torch.optim.SGD(parameters, lr=how.learning_rate, momentum=how.momentum)
    for _ in range(how.epochs):
        for inputs, labels in batches(samples, how.batch_size, generator):
            optimiser.zero_grad(set_to_none=True)
            loss(_outputs(model, inputs), labels).backward()
            optimiser.step()


def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    try:
        outputs: Tensor = model(inputs)
    except ValueError as error:
        if len(inputs) > 1 or "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            "a client's last batch holds one sample, which BatchNorm cannot normalise: "
            "change training.batch_size or the clients' sizes"
        ) from error
    return outputs
