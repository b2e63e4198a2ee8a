"""GPU: each client trains by CUDA graphs on a stream of its own, several clients at once.

A slot is a copy of the network with its stream and graphs. A client goes to the first slot that is
idle. Its work is queued and never waited for, so the processor only ever gathers and launches.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from secede.data.samples import Samples
from secede.federation.executors.capture import (
    LARGEST_BLOCK,
    Block,
    Replay,
    blocks,
    give_back_memory,
    to_device,
)
from secede.federation.executors.executor import Job, Refused, Trainee, Work
from secede.federation.executors.layout import channels_last, pool_before_relu
from secede.federation.executors.step import plain_step
from secede.federation.executors.trial import replaces_buffers
from secede.federation.precision import products
from secede.federation.training import trainable
from secede.seeding import torch_seeded

SLOTS = 16  # clients in flight at a time


class Graphs:
    """Trains clients side by side on one GPU."""

    name = "graphs"

    def __init__(
        self,
        work: Work,
        example: Samples,
        *,
        draws: bool,
        slots: int = SLOTS,
        anywhere: bool = False,
    ) -> None:
        if work.device.type != "cuda" and not anywhere:  # on a CPU it runs, for tests, plainly
            raise Refused("it needs a CUDA device")
        if replaces_buffers(work, example):
            raise Refused("it cannot follow buffers that the network replaces as it trains")
        self._work, self._draws = work, draws
        # Graphs share torch's generator: clients that draw from it must follow one another.
        self._limit = 1 if draws else slots
        self._slots: list[_Slot] = []
        self._turns = itertools.count()
        self._lock = threading.Lock()

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Queue every job on a slot; what comes back is ready on the caller's stream."""
        # Memory is taken on the caller's stream and handed to the slots, so that it may be freed
        # like any other.
        orders = to_device([job.orders for job in jobs], self._work.device)
        queued: list[tuple[dict[str, Tensor], _Slot]] = []
        try:
            for job, mine in zip(jobs, orders, strict=True):
                queued.append(self._queue(job, mine))
        finally:
            for slot in {slot for _, slot in queued}:
                slot.replay.rejoin()
        return [state for state, _ in queued]

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Put channels last for bf16, whose convolutions want it, and pooling before ReLU."""
        if self._work.precision == "bf16" and self._work.device.type == "cuda":
            channels_last(model)
        pool_before_relu(model)
        return model

    def _queue(self, job: Job, orders: Sequence[Tensor]) -> tuple[dict[str, Tensor], _Slot]:
        while True:
            try:
                slot = self._next_slot(job.samples)
                with slot.held(), products(self._work.precision):
                    with self._seeded(0):  # a step is tried, and may draw
                        slot.prepare(job)
                    result = slot.trainee.like()
                    with self._seeded(job.noise):
                        slot.train(job, orders, result)
                return result, slot
            except torch.OutOfMemoryError:
                if not self._slots:
                    raise
            self._make_room()  # not while the error still holds what it ran out in

    def _seeded(self, noise: int) -> AbstractContextManager[None]:
        return torch_seeded(noise) if self._draws else nullcontext()

    def _next_slot(self, like: Samples) -> _Slot:
        with self._lock:
            for slot in self._slots:
                if slot.claim():
                    return slot
            if len(self._slots) < self._limit:
                self._slots.append(_Slot(self._work, self, like))
                return self._slots[-1]
            return self._slots[next(self._turns) % self._limit]  # busy: the job queues up

    def _make_room(self) -> None:
        """Go on with half as many slots; the last one is given up whole and made anew."""
        with self._lock:
            left = len(self._slots) // 2
            self._limit = max(1, left)
            del self._slots[left:]
        give_back_memory()


class _Slot:
    """A copy of the network, the memory its graphs read and write, and its stream."""

    def __init__(self, work: Work, executor: Graphs, like: Samples) -> None:
        self._lock = threading.Lock()
        self._claimed = True  # by whoever asked for a new slot
        self._done: torch.cuda.Event | None = None
        self._batch_size = work.training.batch_size
        self.replay = Replay(work.device)
        with self.replay.apart():  # memory of this stream: freed early, it is reused in turn
            self.trainee = Trainee.of(work, executor)
            self.trainee.model.train()
            self._parameters = trainable(self.trainee.model)
            self._momenta = [torch.zeros_like(p) for p in self._parameters]
            rows = LARGEST_BLOCK * self._batch_size
            self._inputs = like.x.new_zeros(rows, *like.shape)
            self._labels = like.y.new_zeros(rows)
        self._step = plain_step(work, self.trainee.model)

    def claim(self) -> bool:
        """Take the slot for a job if it has nothing to do."""
        if self._claimed or not (self._done is None or self._done.query()):
            return False
        self._claimed = True
        return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other threads from queueing here in the block; the slot is idle when it is done."""
        with self._lock:
            try:
                yield
            finally:
                self._done, self._claimed = self.replay.mark(), False

    def prepare(self, job: Job) -> None:
        """Capture what `job` needs and is not captured yet."""
        for block in blocks(len(job.samples), self._batch_size):
            self.replay.prepare((block.steps, block.size), partial(self._run, block))

    def train(self, job: Job, orders: Sequence[Tensor], result: dict[str, Tensor]) -> None:
        """Queue one client's turn; `result` is written when the stream gets there."""
        with self.replay.apart():
            self.trainee.load(job.state)
            torch._foreach_zero_(self._momenta)
            for order in orders:
                for block in blocks(len(job.samples), self._batch_size):
                    self._gather(job, order[block.rows])
                    self.replay.run((block.steps, block.size), partial(self._run, block))
            self.trainee.read_into(result)

    def _gather(self, job: Job, chosen: Tensor) -> None:
        count = len(chosen)
        torch.index_select(job.samples.x, 0, chosen, out=self._inputs[:count])
        torch.index_select(job.samples.y, 0, chosen, out=self._labels[:count])

    def _run(self, block: Block) -> None:
        rows = block.steps * block.size
        for inputs, labels in zip(
            self._inputs[:rows].split(block.size),
            self._labels[:rows].split(block.size),
            strict=True,
        ):
            self._step(self._parameters, self._momenta, inputs, labels)
