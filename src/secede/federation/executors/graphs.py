"""The GPU executor of CUDA graphs: each client on its own stream, several clients at once.

A slot is a copy of the model with its stream and graphs. A job goes to the first idle slot. Its
work is queued and never waited for, so the processor only gathers batches and launches graphs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from secede.data import Samples
from secede.federation.executors.capture import (
    MAX_BLOCK_STEPS,
    Block,
    Replay,
    blocks,
    release_cached_memory,
    to_device,
)
from secede.federation.executors.executor import (
    Job,
    Refused,
    Work,
    WorkingModel,
    channels_last,
    plain_step,
    pool_before_relu,
)
from secede.federation.training import product_precision, trainable
from secede.seeding import torch_seeded

SLOTS = 16  # clients in flight at a time


class Graphs:
    """Executor that trains several clients at once on one GPU.

    The model may not replace its buffers in training.
    """

    name = "graphs"

    def __init__(
        self,
        work: Work,
        *,
        draws: bool,
        slots: int = SLOTS,
        anywhere: bool = False,
    ) -> None:
        if work.device.type != "cuda" and not anywhere:  # tests run it on a CPU, without graphs
            raise Refused("it needs a CUDA device")
        self._work, self._draws = work, draws
        # Graphs share torch's generator: clients that draw from it must train in turn.
        self._limit = 1 if draws else slots
        self._slots: list[_Slot] = []
        self._turns = itertools.count()
        self._lock = threading.Lock()

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Queue every job on a slot; the states are ready on the caller's stream."""
        # Memory is allocated on the caller's stream, so it can be freed like any other.
        orders = to_device([job.orders for job in jobs], self._work.device)
        queued: list[tuple[dict[str, Tensor], _Slot]] = []
        try:
            for job, job_orders in zip(jobs, orders, strict=True):
                queued.append(self._queue(job, job_orders))
        finally:
            for slot in {slot for _, slot in queued}:
                slot.replay.join()
        return [state for state, _ in queued]

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Put channels last for bf16, where convolutions are faster, and pooling before ReLU."""
        if self._work.precision == "bf16" and self._work.device.type == "cuda":
            channels_last(model)
        pool_before_relu(model)
        return model

    def _queue(self, job: Job, orders: Sequence[Tensor]) -> tuple[dict[str, Tensor], _Slot]:
        while True:
            try:
                slot = self._next_slot(job.samples)
                with slot.locked(), product_precision(self._work.precision):
                    with self._seeded(0):  # a capture runs a step, which may draw
                        slot.prepare(job)
                    result = slot.model_copy.empty_state()
                    with self._seeded(job.noise):
                        slot.train(job, orders, result)
                return result, slot
            except torch.OutOfMemoryError:
                if not self._slots:
                    raise
            self._make_room()  # outside the handler: the error holds the memory that ran out

    def _seeded(self, noise: int) -> AbstractContextManager[None]:
        return torch_seeded(noise) if self._draws else nullcontext()

    def _next_slot(self, example: Samples) -> _Slot:
        with self._lock:
            for slot in self._slots:
                if slot.claim():
                    return slot
            if len(self._slots) < self._limit:
                self._slots.append(_Slot(self._work, self, example))
                return self._slots[-1]
            return self._slots[next(self._turns) % self._limit]  # busy: the job waits on its stream

    def _make_room(self) -> None:
        """Go on with half as many slots; delete and recreate the last one."""
        with self._lock:
            count = len(self._slots) // 2
            self._limit = max(1, count)
            del self._slots[count:]
        release_cached_memory()


class _Slot:
    """A copy of the model, the memory of its graphs, and its stream."""

    def __init__(self, work: Work, executor: Graphs, example: Samples) -> None:
        self._lock = threading.Lock()
        self._claimed = True  # by the job that a new slot is made for
        self._done: torch.cuda.Event | None = None
        self._batch_size = work.training.batch_size
        self.replay = Replay(work.device)
        with self.replay.on_stream():  # memory of this stream, so it is reused in order
            self.model_copy = WorkingModel.of(work, executor)
            self.model_copy.model.train()
            self._parameters = trainable(self.model_copy.model)
            self._momenta = [torch.zeros_like(p) for p in self._parameters]
            rows = MAX_BLOCK_STEPS * self._batch_size
            self._inputs = example.x.new_zeros(rows, *example.shape)
            self._labels = example.y.new_zeros(rows)
        self._step = plain_step(work, self.model_copy.model)

    def claim(self) -> bool:
        """Claim the slot for a job if it is idle."""
        if self._claimed or not (self._done is None or self._done.query()):
            return False
        self._claimed = True
        return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the slot in the block; it is idle when all queued work is done."""
        with self._lock:
            try:
                yield
            finally:
                self._done, self._claimed = self.replay.record_event(), False

    def prepare(self, job: Job) -> None:
        """Capture the graphs that `job` needs and that are missing."""
        for block in blocks(len(job.samples), self._batch_size):
            self.replay.prepare((block.steps, block.size), partial(self._run, block))

    def train(self, job: Job, orders: Sequence[Tensor], result: dict[str, Tensor]) -> None:
        """Queue one client's training; the stream writes `result` at its end."""
        with self.replay.on_stream():
            self.model_copy.load(job.state)
            torch._foreach_zero_(self._momenta)
            for order in orders:
                for block in blocks(len(job.samples), self._batch_size):
                    self._gather(job, order[block.rows])
                    self.replay.run((block.steps, block.size), partial(self._run, block))
            self.model_copy.read_into(result)

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
