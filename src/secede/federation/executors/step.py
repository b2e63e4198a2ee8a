"""One in-place step of SGD with momentum, without an optimiser, so a graph can capture it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from secede.federation.executors.executor import Work
from secede.federation.training import LocalTraining, batch_loss

Step = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor], None]


def descend(
    parameters: Sequence[Tensor],
    momenta: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    training: LocalTraining,
) -> None:
    """Step as `torch.optim.SGD` does; parameters without a gradient stay."""
    with_gradient = [
        (p, m, g) for p, m, g in zip(parameters, momenta, gradients, strict=True) if g is not None
    ]
    if not with_gradient:
        return
    values, velocities, slopes = (list(column) for column in zip(*with_gradient, strict=True))
    with torch.no_grad():
        if all(value.dtype == torch.float32 for value in values):
            torch._fused_sgd_(
                values,
                slopes,
                velocities if training.momentum else [],
                weight_decay=0.0,
                momentum=training.momentum,
                lr=training.learning_rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )
            return
        torch._foreach_mul_(velocities, training.momentum)
        torch._foreach_add_(velocities, slopes)
        torch._foreach_add_(values, velocities, alpha=-training.learning_rate)


def plain_step(work: Work, model: nn.Module) -> Step:
    """Return a step of `model`; it must be called with the model's own parameters."""

    def step(
        parameters: Sequence[Tensor], momenta: Sequence[Tensor], inputs: Tensor, labels: Tensor
    ) -> None:
        loss = batch_loss(model, inputs, labels, loss=work.loss, precision=work.precision)
        gradients = torch.autograd.grad(loss, list(parameters), allow_unused=True)
        descend(parameters, momenta, gradients, work.training)

    return step
