"""The oracle: one client after another, by the plain loop of `training.py`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from secede.federation.executors.executor import Job, Trainee, Work
from secede.federation.precision import products
from secede.federation.training import train
from secede.seeding import torch_seeded


class Loop:
    """Trains clients one after another on any device."""

    name = "loop"

    def __init__(self, work: Work) -> None:
        self._work = work

    def train(self, jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
        """Train each job's client in turn."""
        trainee = Trainee.of(self._work, self)
        return [train_plainly(trainee, job, self._work) for job in jobs]

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Leave `model` as it is."""
        return model


def train_plainly(trainee: Trainee, job: Job, work: Work) -> dict[str, Tensor]:
    """Take one client's turn by the plain loop."""
    trainee.load(job.state)
    with torch_seeded(job.noise), products(work.precision):
        train(
            trainee.model,
            job.samples,
            work.training,
            orders=job.orders,
            loss=work.loss,
            precision=work.precision,
        )
    return trainee.read()
