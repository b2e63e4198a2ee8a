"""One step of SGD with momentum in place, without an optimiser object: fit to be captured."""

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
    how: LocalTraining,
) -> None:
    """Move `parameters` as `torch.optim.SGD` does; without a gradient they stay."""
    moved = [
        (p, m, g) for p, m, g in zip(parameters, momenta, gradients, strict=True) if g is not None
    ]
    if not moved:
        return
    values, speeds, slopes = (list(column) for column in zip(*moved, strict=True))
    with torch.no_grad():
        if all(value.dtype == torch.float32 for value in values):
            torch._fused_sgd_(
                values,
                slopes,
                speeds if how.momentum else [],
                weight_decay=0.0,
                momentum=how.momentum,
                lr=how.learning_rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )
            return
        torch._foreach_mul_(speeds, how.momentum)
        torch._foreach_add_(speeds, slopes)
        torch._foreach_add_(values, speeds, alpha=-how.learning_rate)


def plain_step(work: Work, model: nn.Module) -> Step:
    """Return a step of `model` itself; the parameters handed in must be its own."""

    def step(
        parameters: Sequence[Tensor], momenta: Sequence[Tensor], inputs: Tensor, labels: Tensor
    ) -> None:
        loss = batch_loss(model, inputs, labels, loss=work.loss, precision=work.precision)
        gradients = torch.autograd.grad(loss, list(parameters), allow_unused=True)
        descend(parameters, momenta, gradients, work.training)

    return step
