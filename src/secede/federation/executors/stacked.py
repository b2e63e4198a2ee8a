"""The stacked executor: clients as one model by vmap, one kernel for a layer of all clients.

Best if a single client is too small to keep the device busy. Clients leave the stack when their
samples end; as many are stacked at once as memory allows.
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
from secede.data import Samples
from secede.federation.executors.capture import MAX_BLOCK_STEPS, Block, Replay, blocks, to_device
from secede.federation.executors.chunks import Chunks
from secede.federation.executors.executor import Job, Work, descend
from secede.federation.training import forward, product_precision
from secede.state import State


class Stacked:
    """Executor that trains many clients as one model with a client dimension.

    The model may not draw random numbers, and may not change its buffers in training.
    """

    name = "stacked"

    def __init__(self, work: Work, example: Samples, *, chunk: int | None = None) -> None:
        # A call with other values puts them into the model for a moment: so it works on a copy.
        self._work = replace(work, model=copy.deepcopy(work.model))
        self.chunks = Chunks(work, example, chunk)
        self._stack: _Stack | None = None
        self._lock = threading.Lock()

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Train the jobs in stacks, as many clients at once as memory allows."""
        with self._lock, product_precision(self._work.precision):
            return self.chunks.train(jobs, self._train_together, self._release)

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Return `model` unchanged."""
        return model

    def _train_together(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        if self._stack is None or self._stack.places < len(jobs):
            self._release()
            self._stack = _Stack(self._work, len(jobs), jobs[0].samples)
        return self._stack.train(jobs)

    def _release(self) -> None:
        self._stack = None


@dataclass(frozen=True)
class _SharedBlock:
    """A block that the clients at places `first` to `last` train together."""

    first: int
    last: int
    block: Block


def shared_blocks(sizes: Sequence[int], batch_size: int) -> Iterator[_SharedBlock]:
    """Cut one epoch of clients, sorted by falling size, into blocks that clients share.

    All clients that still have full batches train together, and so do partial batches of one size.
    """
    full = [size // batch_size for size in sizes]
    done = 0
    for end in sorted({f for f in full if f}):
        clients = sum(f >= end for f in full)
        for block in blocks((end - done) * batch_size, batch_size):
            shifted = Block(done * batch_size + block.start, block.steps, block.size)
            yield _SharedBlock(0, clients, shifted)
        done = end
    place = 0
    for size, same_size in groupby(sizes):
        last = place + len(list(same_size))
        if rest := size % batch_size:
            yield _SharedBlock(place, last, Block(size - rest, 1, rest))
        place = last


class _Stack:
    """Memory for a number of clients, and the graphs that train in it."""

    def __init__(self, work: Work, places: int, example: Samples) -> None:
        self.places = places
        self._work = work
        self._replay = Replay(work.device)
        with self._replay.on_stream():  # memory of this stream, so it is reused in order
            self._allocate(work, example)
        self._gradient = vmap(grad(self._loss))

    def _allocate(self, work: Work, example: Samples) -> None:
        places, rows = self.places, MAX_BLOCK_STEPS * work.training.batch_size
        self._inputs = example.x.new_zeros(places, rows, *example.shape)
        self._labels = example.y.new_zeros(places, rows)
        trainable = {name for name, p in work.model.named_parameters() if p.requires_grad}
        self._values = {
            name: value.new_zeros(places, *value.shape)
            for name, value in states.live(work.model).items()
        }
        self._trainable = [name for name in self._values if name in trainable]
        self._momenta = [torch.zeros_like(self._values[name]) for name in self._trainable]

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Train the clients, sorted by falling size, from their states."""
        sizes = [len(job.samples) for job in jobs]
        plan = list(shared_blocks(sizes, self._work.training.batch_size))
        for shared in plan:
            self._replay.prepare(_key(shared), partial(self._run, shared))
        orders = to_device([job.orders for job in jobs], self._work.device)
        with self._replay.on_stream_then_join():
            self._load([job.state for job in jobs])
            for epoch in zip(*orders, strict=True):
                for shared in plan:
                    self._gather(jobs, epoch, shared)
                    self._replay.run(_key(shared), partial(self._run, shared))
            trained = {name: value[: len(jobs)].clone() for name, value in self._values.items()}
        self._replay.hold_memory(*trained.values())
        return [
            {name: value[place] for name, value in trained.items()} for place in range(len(jobs))
        ]

    def _load(self, starts: Sequence[State]) -> None:
        for place, start in enumerate(starts):
            views = {name: value[place] for name, value in self._values.items()}
            states.check_schema(start, views)
            states.copy(start, views)
        torch._foreach_zero_(self._momenta)

    def _gather(self, jobs: Sequence[Job], orders: Sequence[Tensor], shared: _SharedBlock) -> None:
        for place in range(shared.first, shared.last):
            chosen = orders[place][shared.block.rows]
            samples, count = jobs[place].samples, len(chosen)
            torch.index_select(samples.x, 0, chosen, out=self._inputs[place, :count])
            torch.index_select(samples.y, 0, chosen, out=self._labels[place, :count])

    def _run(self, shared: _SharedBlock) -> None:
        places, size = slice(shared.first, shared.last), shared.block.size
        values = {name: value[places] for name, value in self._values.items()}
        parameters = {name: values.pop(name) for name in self._trainable}
        momenta = [momentum[places] for momentum in self._momenta]
        for number in range(shared.block.steps):
            rows = slice(number * size, (number + 1) * size)
            inputs, labels = self._inputs[places, rows], self._labels[places, rows]
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


def _key(shared: _SharedBlock) -> tuple[int, int, int, int]:
    return shared.first, shared.last, shared.block.steps, shared.block.size
