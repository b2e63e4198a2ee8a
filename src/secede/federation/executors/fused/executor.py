"""The fused GPU executor: convolutions with pooling, one launch per layer for all clients.

Each stack has its own stream and CUDA graphs, so several federations may train at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from secede import state as states
from secede.data import Samples
from secede.federation.executors.capture import MAX_BLOCK_STEPS, Block, Replay, blocks, to_device
from secede.federation.executors.chunks import Chunks
from secede.federation.executors.executor import Job, Refused, Work
from secede.federation.executors.fused.network import Network, parse
from secede.federation.training import product_precision

MAX_IDLE = 16  # stacks kept for later rounds, each with the memory of its clients


class Fused:
    """Executor that trains many clients of one small CNN by kernels made for it."""

    name = "fused"

    def __init__(
        self, work: Work, example: Samples, *, chunk: int | None = None, anywhere: bool = False
    ) -> None:
        if work.device.type != "cuda" and not anywhere:  # tests use Triton's interpreter
            raise Refused("it needs a CUDA device")
        try:
            import triton  # noqa: F401
        except ImportError:
            raise Refused("Triton is not installed") from None
        if work.loss is not nn.functional.cross_entropy:
            raise Refused("it supports the mean cross-entropy loss only")
        if example.x.ndim != 4:
            raise Refused("it needs images of shape (channels, height, width)")
        network = parse(work.model, *example.shape[1:])
        self._work, self._network = work, network
        batch = work.training.batch_size
        max_clients = network.max_clients(MAX_BLOCK_STEPS * batch, batch)
        if max_clients == 0:
            raise Refused("one client's batches are too large for its 32-bit indices")
        self._chunks = Chunks(work, example, chunk, max_size=max_clients)
        self._template = states.live(work.model)
        self._idle: list[_Places] = []
        self._lock = threading.Lock()

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Train the jobs' clients together, as many at once as memory allows."""
        for job in jobs:
            states.check_schema(job.state, self._template)
        with product_precision(self._work.precision):
            return self._chunks.train(jobs, self._train_together, self._release)

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Return `model` unchanged."""
        return model

    def _train_together(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        places = self._idle_places(len(jobs)) or _Places(
            self._work, self._network, len(jobs), jobs[0].samples
        )
        trained = places.train(jobs)
        with self._lock:
            self._idle = [places, *self._idle][:MAX_IDLE]
        return trained

    def _idle_places(self, count: int) -> _Places | None:
        with self._lock:
            for index, places in enumerate(self._idle):
                if places.count == count:
                    return self._idle.pop(index)
        return None

    def _release(self) -> None:
        with self._lock:
            self._idle.clear()


class _Places:
    """Memory for a number of clients: their stack, the rows of a block, and the graphs."""

    def __init__(self, work: Work, network: Network, count: int, example: Samples) -> None:
        self.count, self._batch = count, work.training.batch_size
        self._replay = Replay(work.device)
        with self._replay.on_stream():  # memory of this stream, so it is reused in order
            self._allocate(work, network, example)
        self._stack.warm_up(self._rows[0], self._counts[0])

    def _allocate(self, work: Work, network: Network, example: Samples) -> None:
        from secede.federation.executors.fused.stack import Stack

        count, rows = self.count, MAX_BLOCK_STEPS * self._batch
        channels, height, width = example.shape
        border = network.convolutions[0].kernel // 2
        self._images = example.x.new_zeros(
            count, rows, height + 2 * border, width + 2 * border, channels
        )
        self._within = self._images[:, :, border : border + height, border : border + width]
        self._labels = example.y.new_zeros(count, rows)
        self._stack = Stack(
            network,
            self._images.flatten(0, 1),
            self._labels.flatten(),
            clients=count,
            batch=self._batch,
            learning_rate=work.training.learning_rate,
            momentum=work.training.momentum,
            precision=work.precision,
        )
        # The rows that each step of a block reads, and how many of them are valid.
        all_rows = torch.arange(count * rows, device=work.device).view(count, MAX_BLOCK_STEPS, -1)
        self._rows = all_rows.transpose(0, 1).contiguous()
        # An even width aligns rows to 16 bytes; others would be compiled separately.
        width = count + count % 2
        self._counts = torch.zeros(MAX_BLOCK_STEPS, width, dtype=torch.int64, device=work.device)

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Train the clients from their states, step by step together."""
        largest = max(len(job.samples) for job in jobs)
        steps = -(-largest // self._batch)
        plan = list(blocks(steps * self._batch, self._batch))
        for block in plan:
            self._replay.prepare(block.steps, partial(self._run, block))
        orders = to_device([job.orders for job in jobs], self._labels.device)
        counts = self._valid_rows([len(job.samples) for job in jobs], steps)
        with self._replay.on_stream_then_join():
            self._stack.parameters.load([job.state for job in jobs])
            for epoch in range(len(jobs[0].orders)):
                for block in plan:
                    first = block.start // self._batch
                    valid = counts[first : first + block.steps]
                    self._counts[: block.steps, : self.count].copy_(valid)
                    for place, job in enumerate(jobs):
                        self._gather(place, job, orders[place][epoch][block.rows])
                    self._replay.run(block.steps, partial(self._run, block))
            trained = self._stack.parameters.read()
        self._replay.hold_memory(*trained.values())
        return [
            {name: value[place] for name, value in trained.items()} for place in range(len(jobs))
        ]

    def _valid_rows(self, sizes: Sequence[int], steps: int) -> Tensor:
        """Return the number of valid rows of each client (column) in each step (row)."""
        starts = torch.arange(steps).mul(self._batch).unsqueeze(1)
        counts = (torch.tensor(sizes).unsqueeze(0) - starts).clamp(0, self._batch)
        return counts.to(self._labels.device, non_blocking=True)

    def _gather(self, place: int, job: Job, chosen: Tensor) -> None:
        x, count = job.samples.x.permute(0, 2, 3, 1), len(chosen)
        self._within[place, :count] = x[chosen]
        torch.index_select(job.samples.y, 0, chosen, out=self._labels[place, :count])

    def _run(self, block: Block) -> None:
        for step in range(block.steps):
            self._stack.step(self._rows[step], self._counts[step])
