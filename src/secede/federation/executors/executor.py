"""What an executor is given and gives back.

A job is one client's turn in one round and is complete in itself: nothing passes from one job to
the next, so an executor may run jobs in any order, together, or again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from secede import state as states
from secede.data.samples import Samples
from secede.federation.precision import Precision
from secede.federation.training import LocalTraining, Loss, trainable
from secede.state import State


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all clients share: the network (its values do not matter), the loss, the settings."""

    model: nn.Module
    training: LocalTraining
    loss: Loss = nn.functional.cross_entropy
    precision: Precision = "float32"

    @property
    def device(self) -> torch.device:
        """Where the network lives."""
        return trainable(self.model)[0].device


@dataclass(frozen=True, kw_only=True)
class Job:
    """One client's turn: where it starts, its samples, each epoch's order, a seed for dropout."""

    state: State
    samples: Samples
    orders: tuple[Tensor, ...]  # on the CPU, one permutation for each epoch
    noise: int


class Executor(Protocol):
    """Trains clients; several threads may call it at once."""

    name: str

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Return each job's trained state, in the jobs' order."""
        ...

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Bring `model` into the memory layout in which this executor runs fastest."""
        ...


class Refused(Exception):  # noqa: N818 - an answer, not an accident
    """An executor cannot do this work; the text says why."""


class Trainee:
    """A copy of the network that takes one client's turn after another."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._fresh = {
            name: value.detach().clone()
            for name, value in model.named_buffers()
            if name not in model.state_dict()
        }

    @classmethod
    def of(cls, work: Work, executor: Executor) -> Trainee:
        """Return a new copy in the executor's layout."""
        return cls(executor.lay_out(copy.deepcopy(work.model)))

    def load(self, state: State) -> None:
        """Take `state`; buffers that no state holds start afresh."""
        values = states.live(self.model)  # anew each time: some networks replace their buffers
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

    def like(self) -> dict[str, Tensor]:
        """Return a state of the same shapes whose values are not set yet."""
        return {
            name: torch.empty(value.shape, dtype=value.dtype, device=value.device)
            for name, value in states.live(self.model).items()
        }

    def read_into(self, state: State) -> None:
        """Copy its state into `state`."""
        states.copy(states.live(self.model), state)
