"""The CPU executor: one client per core, channels-last convolutions, a fused optimiser step.

A single client uses all cores. Clients that draw random numbers train in turn on all cores, since
torch has one generator.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from secede.federation.executors.executor import (
    Job,
    Refused,
    Work,
    WorkingModel,
    channels_last,
    pool_before_relu,
)
from secede.federation.training import batch_loss, trainable
from secede.seeding import torch_seeded


class Cpu:
    """Executor that trains several clients at once, one per core."""

    name = "cpu"

    def __init__(self, work: Work, *, draws: bool, channels_last: bool = True) -> None:
        if work.device.type != "cpu":
            raise Refused("it needs the model on the CPU")
        self._work, self._draws = work, draws
        self._channels_last = channels_last
        self._idle: queue.SimpleQueue[WorkingModel] = queue.SimpleQueue()
        _cores()

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Train the jobs in parallel."""
        if self._draws or len(jobs) == 1:
            return [self._train_job(job) for job in jobs]
        futures = [_cores().submit(self._train_job, job) for job in jobs]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()  # after an error or Ctrl-C, the jobs that have not started

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Put channels last if that works, and pooling before ReLU."""
        if self._channels_last:
            channels_last(model)
        pool_before_relu(model)
        return model

    def _train_job(self, job: Job) -> dict[str, Tensor]:
        try:
            model_copy = self._idle.get_nowait()
        except queue.Empty:
            model_copy = WorkingModel.of(self._work, self)
        model_copy.load(job.state)
        if self._draws:
            with torch_seeded(job.noise):
                self._train(model_copy.model, job)
        else:
            self._train(model_copy.model, job)
        trained = model_copy.read()
        self._idle.put(model_copy)
        return trained

    def _train(self, model: nn.Module, job: Job) -> None:
        training = self._work.training
        model.train()
        optimiser = torch.optim.SGD(
            trainable(model), lr=training.learning_rate, momentum=training.momentum, fused=True
        )
        for inputs, labels in _batches(job, training.batch_size):
            optimiser.zero_grad(set_to_none=True)
            batch_loss(
                model, inputs, labels, loss=self._work.loss, precision=self._work.precision
            ).backward()
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)  # gradients are as large as the model


def _batches(job: Job, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of all epochs; each overwrites the one before."""
    x, y = job.samples.x, job.samples.y
    inputs, labels = x.new_empty(batch_size, *x.shape[1:]), y.new_empty(batch_size)
    for order in job.orders:
        for chosen in order.split(batch_size):
            buffers = inputs[: len(chosen)], labels[: len(chosen)]
            yield (
                torch.index_select(x, 0, chosen, out=buffers[0]),
                torch.index_select(y, 0, chosen, out=buffers[1]),
            )


_starting = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def _cores() -> ThreadPoolExecutor:
    """Return the process's pool of workers, each on one core."""
    global _pool
    with _starting:
        if _pool is None:
            _pool = _start_workers()
        return _pool


def core_count() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start_workers() -> ThreadPoolExecutor:
    # One worker more than cores: if clients do not divide evenly, the last ones share cores.
    count = core_count() + 1
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, "secede-core")
    all_started = threading.Barrier(count + 1)

    def use_one_core() -> None:
        torch.get_num_threads()  # torch sets a thread up in the first call
        torch.set_num_threads(1)
        all_started.wait()

    for _ in range(count):
        pool.submit(use_one_core)
    all_started.wait()
    torch.set_num_threads(threads)  # the workers' 1 had become the default of new threads
    return pool
