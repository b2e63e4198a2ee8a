"""The contract of an executor, the plain loop, and what several share: a step, faster layouts.

A job is one client's training in one round. Nothing passes from one job to the next, so an executor
may run jobs in any order, together, or again. All other executors are tested against the loop.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from secede import state as states
from secede.data import Samples
from secede.federation.engine import LocalTraining, Loss
from secede.federation.training import Precision, batch_loss, product_precision, train, trainable
from secede.seeding import torch_seeded
from secede.state import State

Step = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor], None]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all clients share: the model (its values do not matter), the loss and the settings."""

    model: nn.Module
    training: LocalTraining
    loss: Loss = nn.functional.cross_entropy
    precision: Precision = "float32"

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return trainable(self.model)[0].device


@dataclass(frozen=True, kw_only=True)
class Job:
    """One client's training: start state, samples, an order per epoch, a seed for dropout."""

    state: State
    samples: Samples
    orders: tuple[Tensor, ...]  # on the CPU, one permutation for each epoch
    noise: int


class Executor(Protocol):
    """Training of many clients; several threads may call it at once."""

    name: str

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Return each job's trained state, in the jobs' order."""
        ...

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Return `model` in the memory layout that is fastest here."""
        ...


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """An executor cannot do this work; the text says why."""


class WorkingModel:
    """A copy of the model that trains one client after another."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._fresh = {
            name: value.detach().clone()
            for name, value in model.named_buffers()
            if name not in model.state_dict()
        }

    @classmethod
    def of(cls, work: Work, executor: Executor) -> WorkingModel:
        """Return a new copy in the executor's layout."""
        return cls(executor.lay_out(copy.deepcopy(work.model)))

    def load(self, state: State) -> None:
        """Load `state`; reset the buffers that are not part of a state."""
        values = states.live(self.model)  # read each time: some models replace their buffers
        states.check_schema(state, values)
        states.copy(state, values)
        with torch.no_grad():
            for name, value in self._fresh.items():
                self.model.get_buffer(name).copy_(value)

    def read(self) -> dict[str, Tensor]:
        """Return a copy of its state, in the usual memory layout."""
        return {
            name: value.clone(memory_format=torch.contiguous_format)
            for name, value in states.live(self.model).items()
        }

    def empty_state(self) -> dict[str, Tensor]:
        """Return a state of the same shapes with uninitialised values."""
        return {
            name: torch.empty(value.shape, dtype=value.dtype, device=value.device)
            for name, value in states.live(self.model).items()
        }

    def read_into(self, state: State) -> None:
        """Copy its state into `state`."""
        states.copy(states.live(self.model), state)


class Loop:
    """Executor that trains clients one after another, on any device."""

    name = "loop"

    def __init__(self, work: Work) -> None:
        self._work = work

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Train the jobs in turn."""
        model_copy = WorkingModel.of(self._work, self)
        return [train_job(model_copy, job, self._work) for job in jobs]

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Return `model` unchanged."""
        return model


def train_job(model_copy: WorkingModel, job: Job, work: Work) -> dict[str, Tensor]:
    """Train one job by the plain loop."""
    model_copy.load(job.state)
    with torch_seeded(job.noise), product_precision(work.precision):
        train(
            model_copy.model,
            job.samples,
            work.training,
            orders=job.orders,
            loss=work.loss,
            precision=work.precision,
        )
    return model_copy.read()


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


def channels_last(model: nn.Module) -> None:
    """Put channels last in memory, which changes no result."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def pool_before_relu(model: nn.Module) -> None:
    """Swap each ReLU with the max-pooling right after it.

    Both take a maximum, so their order changes no number and no gradient, but the ReLU then
    computes a fraction of the values. Parameters keep their names.
    """
    for module in model.modules():
        if type(module) is nn.Sequential:
            for index in range(len(module) - 1):
                if _swappable(module[index], module[index + 1]):
                    module[index], module[index + 1] = module[index + 1], module[index]


def _swappable(first: nn.Module, second: nn.Module) -> bool:
    fits = type(first) is nn.ReLU and type(second) is nn.MaxPool2d and not second.return_indices
    return fits and not any(hooks for module in (first, second) for hooks in _hooks(module))


def _hooks(module: nn.Module) -> tuple[object, ...]:
    return (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
