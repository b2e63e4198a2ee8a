"""One step of SGD with momentum in place, without an optimiser object: fit to be captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from secede.federation.executors.executor import Refused, Work
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


def compiled_step(work: Work) -> Step:
    """Return a step compiled whole, gradient and update together, for parameters of any copy."""
    if any(True for _ in work.model.buffers()):
        raise Refused("it compiles networks without buffers only")
    if not all(p.requires_grad for p in work.model.parameters()):
        raise Refused("it compiles networks without frozen parameters only")
    names = [name for name, _ in work.model.named_parameters()]
    how = work.training

    def loss_at(parameters: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        if work.precision == "bf16":
            named = {name: value.bfloat16() for name, value in named.items()}
            inputs = inputs.bfloat16()
        outputs = functional_call(work.model, named, (inputs,))
        return work.loss(outputs.float(), labels)

    def step(
        parameters: Sequence[Tensor], momenta: Sequence[Tensor], inputs: Tensor, labels: Tensor
    ) -> None:
        gradients = grad(loss_at)(list(parameters), inputs, labels)
        torch._foreach_mul_(list(momenta), how.momentum)
        torch._foreach_add_(list(momenta), gradients)
        torch._foreach_add_(list(parameters), list(momenta), alpha=-how.learning_rate)

    compiled: Step = torch.compile(step, fullgraph=True, dynamic=False)
    return compiled
