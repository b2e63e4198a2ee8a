"""A client's side of a task, made of the user's own model and data.

Everything random is named as the simulator names it, by seed, client and number, so that the same
question gives the same answer here, there, and after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader

from secede import state as states
from secede.data.mapstyle import as_samples
from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.federation.engine import Batch, ClientSide, OwnState
from secede.federation.precision import products
from secede.federation.training import LocalTraining, Loss, batches, orders
from secede.seeding import generator, seeded
from secede.state import State
from secede.unlearning.clients import Reply
from secede.unlearning.local import LocalResult
from secede.unlearning.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a client has: network, samples, and how it trains."""

    load_model: Callable[[], nn.Module]
    samples: Samples
    training: LocalTraining = field(default_factory=LocalTraining)
    loss: Loss = nn.functional.cross_entropy
    device: torch.device
    seed: int = 0

    def do(
        self, task: Task, state: State, own: OwnState | None, *, client: int, number: int
    ) -> LocalResult | Reply:
        """Run a task; states come and go under all names that the user's records hold."""
        template = self.load_model()
        side = ClientSide(
            global_state=self._here(state, template),
            own=None if own is None else OwnState(self._here(own.state, template), own.weight),
            samples=len(self.samples),
            training=self.training,
            fresh_model=lambda n: self._fresh(client, n),
            batches=lambda size, n: self._batches(client, size, n),
            loss=self.loss,
        )
        name = ("ask", client, number) if number else ("ask", client)
        with seeded(self.seed, *name), products("float32"):
            reply = task(side)
        if isinstance(reply, Reply):
            return reply
        whole = states.with_aliases(reply.state, template)
        return LocalResult({name: v.detach().cpu() for name, v in whole.items()}, reply.report)

    def _here(self, state: State, template: nn.Module) -> dict[str, torch.Tensor]:
        return states.to(states.without_aliases(state, template), self.device)

    def _fresh(self, client: int, number: int) -> nn.Module:
        with seeded(self.seed, "model", "fresh", client, number):
            return self.load_model().to(self.device)

    def _batches(self, client: int, size: int, number: int) -> Iterator[Batch]:
        draw = generator(self.seed, "unlearning", client, number)
        return batches(self.samples, size, orders(len(self.samples), 1, draw)[0])


def samples_of(source: object) -> Samples:
    """Return the samples in what a user's `load_data` gives: a loader's are its data set's.

    Of loaders for training and for testing, the first counts.
    """
    if isinstance(source, tuple | list) and source and isinstance(source[0], DataLoader):
        source = source[0]
    if isinstance(source, DataLoader):
        source = source.dataset
    samples = as_samples(source)
    if len(samples) == 0:
        raise ConfigError("load_data gave no samples: expected the client's training data")
    return samples
