"""Chunks of clients that fit the memory: sized by an estimate, halved if it is too high."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from secede import state as states
from secede.data import Samples
from secede.federation.executors.capture import MAX_BLOCK_STEPS, release_cached_memory
from secede.federation.executors.executor import Job, Work
from secede.federation.training import batch_loss
from secede.seeding import torch_seeded

TrainChunk = Callable[[Sequence[Job]], list[dict[str, Tensor]]]
MEMORY_SHARE = 0.25  # of a device's memory for one stack; several may train at once
_COPIES = 6  # a client's values, momentum, gradient, and temporary values of their update
_ACTIVATIONS = 3  # saved for the backward pass, their gradients, and the kernels' temporary values


class Chunks:
    """The number of clients that are trained together."""

    def __init__(
        self, work: Work, example: Samples, size: int | None = None, *, max_size: int | None = None
    ) -> None:
        fit = int(MEMORY_SHARE * total_bytes(work.device)) // max(1, client_bytes(work, example))
        self.size = size or max(1, fit if max_size is None else min(fit, max_size))

    def train(
        self, jobs: Sequence[Job], train_chunk: TrainChunk, release: Callable[[], None]
    ) -> list[dict[str, Tensor]]:
        """Train all jobs, the largest clients first; halve a chunk that does not fit.

        `release` frees the memory that earlier chunks hold.
        """
        pending = sorted(range(len(jobs)), key=lambda i: -len(jobs[i].samples))
        trained: dict[int, dict[str, Tensor]] = {}
        released = False
        while pending:
            chosen = pending[: self.size]
            results = None
            try:
                results = train_chunk([jobs[i] for i in chosen])
                released = False
            except torch.OutOfMemoryError:
                if len(chosen) == 1 and released:
                    raise
            if results is None:  # outside the handler: the error holds the memory that ran out
                self.size, released = max(1, len(chosen) // 2), True
                release()
                release_cached_memory()
                continue
            trained.update(zip(chosen, results, strict=True))
            pending = pending[len(chosen) :]
        return [trained[i] for i in range(len(jobs))]


def total_bytes(device: torch.device) -> int:
    """Return the memory of `device`: the free part would change from run to run."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def client_bytes(work: Work, example: Samples) -> int:
    """Return an estimate of the bytes that one client needs to train on full batches."""
    rows = min(len(example), 4)
    saved = saved_for_backward(work, example.take(torch.arange(rows, device=example.y.device)))
    activations = saved * work.training.batch_size // rows
    block_inputs = MAX_BLOCK_STEPS * work.training.batch_size * example.x[:1].nbytes
    state_bytes = states.size_bytes(states.live(work.model))
    return _COPIES * state_bytes + _ACTIVATIONS * activations + block_inputs


def saved_for_backward(work: Work, batch: Samples) -> int:
    """Return the bytes of activations that the forward pass of `batch` saves."""
    saved: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    model = copy.deepcopy(work.model).train()
    parameters = {value.untyped_storage().data_ptr() for value in model.parameters()}
    with torch_seeded(0), torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        loss = batch_loss(model, batch.x, batch.y, loss=work.loss, precision=work.precision)
    del loss
    return sum(saved.values())
