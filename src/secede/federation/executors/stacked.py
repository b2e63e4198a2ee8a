"""Clients stacked into one network by vmap: one kernel does every client's layer.

Best where a client alone is too small to keep the device busy. Clients of unequal size leave the
stack when their samples end; as many are stacked at once as memory allows.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from secede import state as states
from secede.data.samples import Samples
from secede.federation.executors.capture import LARGEST_BLOCK, Block, Replay, blocks, to_device
from secede.federation.executors.chunks import Chunks
from secede.federation.executors.executor import Job, Refused, Work
from secede.federation.executors.step import descend
from secede.federation.executors.trial import changes_buffers
from secede.federation.precision import forward, products
from secede.state import State


class Stacked:
    """Trains many clients as one network with a further dimension."""

    name = "stacked"

    def __init__(
        self, work: Work, example: Samples, *, draws: bool, chunk: int | None = None
    ) -> None:
        if draws:
            raise Refused("it cannot give each client its own random numbers (dropout)")
        if changes_buffers(work, example):
            raise Refused("it cannot keep each client's own statistics (BatchNorm)")
        # A network called with other values holds them for a moment: nobody else may see that.
        self._work = replace(work, model=copy.deepcopy(work.model))
        self.chunks = Chunks(work, example, chunk)
        self._stack: _Stack | None = None
        self._lock = threading.Lock()

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Train the jobs in stacks, as many clients at once as memory allows."""
        with self._lock, products(self._work.precision):
            return self.chunks.train(jobs, self._train_together, self._free)

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Leave `model` as it is."""
        return model

    def _train_together(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        if self._stack is None or self._stack.places < len(jobs):
            self._free()
            self._stack = _Stack(self._work, len(jobs), jobs[0].samples)
        return self._stack.train(jobs)

    def _free(self) -> None:
        self._stack = None


@dataclass(frozen=True)
class _Stretch:
    """A block that the clients at places `first` to `last` train together."""

    first: int
    last: int
    block: Block


def stretches(sizes: Sequence[int], batch_size: int) -> Iterator[_Stretch]:
    """Cut one epoch of clients, sorted by falling size, into what can be trained together.

    All clients that still have a full batch go on together; partial batches of the same size do.
    """
    full = [size // batch_size for size in sizes]
    done = 0
    for reach in sorted({f for f in full if f}):
        together = sum(f >= reach for f in full)
        for block in blocks((reach - done) * batch_size, batch_size):
            shifted = Block(done * batch_size + block.start, block.steps, block.size)
            yield _Stretch(0, together, shifted)
        done = reach
    place = 0
    for size, same in groupby(sizes):
        last = place + len(list(same))
        if rest := size % batch_size:
            yield _Stretch(place, last, Block(size - rest, 1, rest))
        place = last


class _Stack:
    """The memory of some places for clients, and the graphs that train in it."""

    def __init__(self, work: Work, places: int, like: Samples) -> None:
        self.places = places
        self._work = work
        self._replay = Replay(work.device)
        with self._replay.apart():  # memory of this stream: freed early, it is reused in turn
            self._take_memory(work, like)
        self._gradient = vmap(grad(self._loss))

    def _take_memory(self, work: Work, like: Samples) -> None:
        places, rows = self.places, LARGEST_BLOCK * work.training.batch_size
        self._inputs = like.x.new_zeros(places, rows, *like.shape)
        self._labels = like.y.new_zeros(places, rows)
        moving = {name for name, p in work.model.named_parameters() if p.requires_grad}
        self._values = {
            name: value.new_zeros(places, *value.shape)
            for name, value in states.live(work.model).items()
        }
        self._moving = [name for name in self._values if name in moving]
        self._momenta = [torch.zeros_like(self._values[name]) for name in self._moving]

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Train the clients, sorted by falling size, from their states."""
        sizes = [len(job.samples) for job in jobs]
        plan = list(stretches(sizes, self._work.training.batch_size))
        for stretch in plan:
            self._replay.prepare(_key(stretch), partial(self._run, stretch))
        orders = to_device([job.orders for job in jobs], self._work.device)
        with self._replay.apart_until_rejoined():
            self._load([job.state for job in jobs])
            for epoch in zip(*orders, strict=True):
                for stretch in plan:
                    self._gather(jobs, epoch, stretch)
                    self._replay.run(_key(stretch), partial(self._run, stretch))
            trained = {name: value[: len(jobs)].clone() for name, value in self._values.items()}
        self._replay.keep(*trained.values())
        return [
            {name: value[place] for name, value in trained.items()} for place in range(len(jobs))
        ]

    def _load(self, starts: Sequence[State]) -> None:
        for place, start in enumerate(starts):
            here = {name: value[place] for name, value in self._values.items()}
            states.check_schema(start, here)
            states.copy(start, here)
        torch._foreach_zero_(self._momenta)

    def _gather(self, jobs: Sequence[Job], orders: Sequence[Tensor], stretch: _Stretch) -> None:
        for place in range(stretch.first, stretch.last):
            chosen = orders[place][stretch.block.rows]
            samples, count = jobs[place].samples, len(chosen)
            torch.index_select(samples.x, 0, chosen, out=self._inputs[place, :count])
            torch.index_select(samples.y, 0, chosen, out=self._labels[place, :count])

    def _run(self, stretch: _Stretch) -> None:
        here, size = slice(stretch.first, stretch.last), stretch.block.size
        values = {name: value[here] for name, value in self._values.items()}
        parameters = {name: values.pop(name) for name in self._moving}
        momenta = [momentum[here] for momentum in self._momenta]
        for number in range(stretch.block.steps):
            rows = slice(number * size, (number + 1) * size)
            inputs, labels = self._inputs[here, rows], self._labels[here, rows]
            gradients = self._gradient(parameters, values, inputs, labels)
            descend(
                list(parameters.values()),
                momenta,
                [gradients[name] for name in parameters],
                self._work.training,
            )

    def _loss(self, parameters: State, others: State, inputs: Tensor, labels: Tensor) -> Tensor:
        values = {**parameters, **others}

        def call(batch: Tensor) -> Tensor:
            outputs: Tensor = functional_call(self._work.model, values, (batch,))
            return outputs

        return self._work.loss(forward(call, inputs, self._work.precision), labels)


def _key(stretch: _Stretch) -> tuple[int, int, int, int]:
    return stretch.first, stretch.last, stretch.block.steps, stretch.block.size
