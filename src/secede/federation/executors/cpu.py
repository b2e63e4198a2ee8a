"""CPU cores: one client per core, channels-last convolutions, one fused optimiser step.

Clients of one round train on one core each. A single client has all cores, and clients that draw
random numbers take turns on all cores, for torch has one generator.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from secede.federation.executors.executor import Job, Refused, Trainee, Work
from secede.federation.executors.layout import channels_last, pool_before_relu
from secede.federation.training import batch_loss, trainable
from secede.seeding import torch_seeded


class Cpu:
    """Trains several clients at once, each on one core."""

    name = "cpu"

    def __init__(self, work: Work, *, draws: bool, channels_last: bool = True) -> None:
        if work.device.type != "cpu":
            raise Refused("it needs the network on the CPU")
        self._work, self._draws = work, draws
        self._channels_last = channels_last
        self._idle: queue.SimpleQueue[Trainee] = queue.SimpleQueue()
        _cores()

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Train the jobs' clients side by side."""
        if self._draws or len(jobs) == 1:
            return [self._turn(job) for job in jobs]
        turns = [_cores().submit(self._turn, job) for job in jobs]
        try:
            return [turn.result() for turn in turns]
        finally:
            for turn in turns:
                turn.cancel()  # after an error or Ctrl-C, what has not begun

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Put images' channels last where that works, and pooling before ReLU."""
        if self._channels_last:
            channels_last(model)
        pool_before_relu(model)
        return model

    def _turn(self, job: Job) -> dict[str, Tensor]:
        try:
            trainee = self._idle.get_nowait()
        except queue.Empty:
            trainee = Trainee.of(self._work, self)
        trainee.load(job.state)
        if self._draws:
            with torch_seeded(job.noise):
                self._train(trainee.model, job)
        else:
            self._train(trainee.model, job)
        trained = trainee.read()
        self._idle.put(trainee)
        return trained

    def _train(self, model: nn.Module, job: Job) -> None:
        how = self._work.training
        model.train()
        optimiser = torch.optim.SGD(
            trainable(model), lr=how.learning_rate, momentum=how.momentum, fused=True
        )
        for inputs, labels in _batches(job, how.batch_size):
            optimiser.zero_grad(set_to_none=True)
            batch_loss(
                model, inputs, labels, loss=self._work.loss, precision=self._work.precision
            ).backward()
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)  # gradients are as large as the network


def _batches(job: Job, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all epochs' batches; each overwrites the one before."""
    x, y = job.samples.x, job.samples.y
    inputs, labels = x.new_empty(batch_size, *x.shape[1:]), y.new_empty(batch_size)
    for order in job.orders:
        for chosen in order.split(batch_size):
            into = inputs[: len(chosen)], labels[: len(chosen)]
            yield (
                torch.index_select(x, 0, chosen, out=into[0]),
                torch.index_select(y, 0, chosen, out=into[1]),
            )


_starting = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def _cores() -> ThreadPoolExecutor:
    """Return the process's workers, each of which computes on one core."""
    global _pool
    with _starting:
        if _pool is None:
            _pool = _start_workers()
        return _pool


def _core_count() -> int:
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start_workers() -> ThreadPoolExecutor:
    # One worker more than cores: where the clients do not divide evenly, the last ones share.
    count = _core_count() + 1
    usual = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, "secede-core")
    all_here = threading.Barrier(count + 1)

    def use_one_core() -> None:
        torch.get_num_threads()  # torch sets a thread up on its first question
        torch.set_num_threads(1)
        all_here.wait()

    for _ in range(count):
        pool.submit(use_one_core)
    all_here.wait()
    torch.set_num_threads(usual)  # the workers' one had become the default for threads to come
    return pool
