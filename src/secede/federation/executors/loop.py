"""The plain executor: one client after another; all others are tested against it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from secede.federation.executors.executor import Job, Work, WorkingModel
from secede.federation.precision import product_precision
from secede.federation.training import train
from secede.seeding import torch_seeded


class Loop:
    """Executor that trains clients one after another, on any device."""

    name = "loop"

    def __init__(self, work: Work) -> None:
        self._work = work

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Train the jobs in turn."""
        model_copy = WorkingModel.of(self._work, self)
        return [train_job(model_copy, job, self._work) for job in jobs]

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Return `model` unchanged."""
        return model


def train_job(model_copy: WorkingModel, job: Job, work: Work) -> dict[str, Tensor]:
    """Train one job by the plain loop."""
    model_copy.load(job.state)
    with torch_seeded(job.noise), product_precision(work.precision):
        train(
            model_copy.model,
            job.samples,
            work.training,
            orders=job.orders,
            loss=work.loss,
            precision=work.precision,
        )
    return model_copy.read()
