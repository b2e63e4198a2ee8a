"""Clients in chunks that fit the memory: cut beforehand by an estimate, halved if it was wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from secede.data.samples import Samples
from secede.federation.executors.capture import give_back_memory
from secede.federation.executors.executor import Job, Work
from secede.federation.executors.memory import SHARE, client_bytes, total_bytes

Together = Callable[[Sequence[Job]], list[dict[str, Tensor]]]


class Chunks:
    """How many clients are trained together."""

    def __init__(
        self, work: Work, example: Samples, size: int | None = None, *, most: int | None = None
    ) -> None:
        fit = int(SHARE * total_bytes(work.device)) // max(1, client_bytes(work, example))
        self.size = size or max(1, fit if most is None else min(fit, most))

    def train(
        self, jobs: Sequence[Job], together: Together, free: Callable[[], None]
    ) -> list[dict[str, Tensor]]:
        """Train all jobs, the largest clients first; a chunk that does not fit is halved.

        `free` gives up whatever is kept from earlier chunks.
        """
        pending = sorted(range(len(jobs)), key=lambda i: -len(jobs[i].samples))
        trained: dict[int, dict[str, Tensor]] = {}
        freed = False
        while pending:
            chosen = pending[: self.size]
            results = None
            try:
                results = together([jobs[i] for i in chosen])
                freed = False
            except torch.OutOfMemoryError:
                if len(chosen) == 1 and freed:
                    raise
            if results is None:  # no longer in the error, which holds what it ran out in
                self.size, freed = max(1, len(chosen) // 2), True
                free()
                give_back_memory()
                continue
            trained.update(zip(chosen, results, strict=True))
            pending = pending[len(chosen) :]
        return [trained[i] for i in range(len(jobs))]
