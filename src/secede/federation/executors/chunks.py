"""Chunks of clients that fit the memory: sized by an estimate, halved if it is too high."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from secede.data.samples import Samples
from secede.federation.executors.capture import release_cached_memory
from secede.federation.executors.executor import Job, Work
from secede.federation.executors.memory import MEMORY_SHARE, client_bytes, total_bytes

TrainChunk = Callable[[Sequence[Job]], list[dict[str, Tensor]]]


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
