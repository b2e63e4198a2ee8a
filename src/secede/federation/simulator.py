"""A whole federation in one process, one client after another: the plain loop.

Of each client it keeps its own last state and that state's share in the last mean, which in a
real federation lie on that client's disk. The caller holds the global state; no update
outlives its round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from secede import state as states
from secede.data.mapstyle import as_samples
from secede.errors import ConfigError
from secede.federation.cost import Cost
from secede.federation.engine import ClientSide, OwnState, ReplyT, RoundReply, Update
from secede.federation.training import LocalTraining, Loss, batches, train
from secede.seeding import generator, seeded
from secede.state import State


class Simulator:
    """An engine over clients that all live here: samples, tensors or map-style data sets."""

    def __init__(
        self,
        clients: Sequence[object],
        make_model: Callable[[], nn.Module],
        *,
        training: LocalTraining,
        seed: int,
        device: torch.device | str = "cpu",
        loss: Loss = nn.functional.cross_entropy,
    ) -> None:
        self.clients = [as_samples(samples).to(device) for samples in clients]
        for index, samples in enumerate(self.clients):
            if len(samples) == 0:
                raise ConfigError(f"client {index} has no samples; every client needs at least one")
        self.own: dict[int, OwnState] = {}
        self._make_model = make_model
        self._training = training
        self._seed = seed
        self._device = torch.device(device)
        self._loss = loss
        self._worker = self._fresh_model("worker")
        kept = self._worker.state_dict()
        self._transient = {
            name: value.detach().clone()
            for name, value in self._worker.named_buffers()
            if name not in kept
        }

    def initial_state(self, *name: str | int) -> dict[str, Tensor]:
        """Return a freshly initialised state; the same name gives the same state."""
        return states.of(self._fresh_model(*name))

    def model(self, state: State) -> nn.Module:
        """Return the worker model holding `state`; the next call overwrites it.

        Buffers that no state holds start afresh, so that nothing passes from one use to the next.
        """
        states.load_into(self._worker, state)
        with torch.no_grad():
            for name, value in self._transient.items():
                self._worker.get_buffer(name).copy_(value)
        return self._worker

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Train `clients` one after another and remember each one's own last state."""
        started = self._clock()
        updates = tuple(self._train_client(client, state, phase, number) for client in clients)
        total = sum(update.samples for update in updates)
        for update in updates:
            self.own[update.client] = OwnState(update.state, update.samples / total)
        wire = states.size_bytes(state) * len(updates)
        cost = Cost(
            rounds=1,
            upload_bytes=wire,
            download_bytes=wire,
            gradient_samples=sum(self._training.gradient_samples(u.samples) for u in updates),
            seconds=self._clock() - started,
        )
        return RoundReply(updates, cost)

    def ask(
        self, client: int, task: Callable[[ClientSide], ReplyT], *, global_state: State
    ) -> tuple[ReplyT, Cost]:
        """Run `task` with what `client` has: one model down, one state up."""
        self._check_known(client)
        if client not in self.own:
            raise ConfigError(f"client {client} has no own state yet: train a round with it first")
        side = ClientSide(
            global_state=global_state,
            own=self.own[client],
            fresh_model=lambda n: self._fresh_model("fresh", client, n),
            batches=lambda size, number: batches(
                self.clients[client], size, generator(self._seed, "unlearning", client, number)
            ),
            loss=self._loss,
        )
        started = self._clock()
        with seeded(self._seed, "ask", client):
            reply = task(side)
        cost = Cost(
            upload_bytes=states.size_bytes(reply.state),
            download_bytes=states.size_bytes(global_state),
            gradient_samples=reply.gradient_samples,
            seconds=self._clock() - started,
        )
        return reply, cost

    def _train_client(self, client: int, state: State, phase: str, number: int) -> Update:
        self._check_known(client)
        samples = self.clients[client]
        name = (phase, number, client)
        with seeded(self._seed, "noise", *name):  # dropout and the like
            train(
                self.model(state),
                samples,
                self._training,
                generator=generator(self._seed, "batches", *name),
                loss=self._loss,
            )
        return Update(client, states.of(self._worker), len(samples))

    def _fresh_model(self, *name: str | int) -> nn.Module:
        with seeded(self._seed, "model", *name):
            return self._make_model().to(self._device)

    def _check_known(self, client: int) -> None:
        if not 0 <= client < len(self.clients):
            raise ConfigError(f"unknown client {client}: there are 0 to {len(self.clients) - 1}")

    def _clock(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
