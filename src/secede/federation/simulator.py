"""A simulated federation in one process; an executor computes the clients of a round.

The simulator stores each client's own last state and its weight in the last mean, which a real
client has on its disk. The weight is 0 for a client that missed a later round of the same phase.
The caller holds the global state; other updates are not stored.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from secede import state as states
from secede.data import as_samples
from secede.errors import ConfigError
from secede.federation.engine import (
    Batch,
    ClientSide,
    Cost,
    LocalTraining,
    Loss,
    OwnState,
    ReplyT,
    RoundReply,
    Update,
)
from secede.federation.executors.choose import Choice, choose
from secede.federation.executors.executor import Job, Work, WorkingModel
from secede.federation.training import (
    Precision,
    batches,
    check_precision,
    explain_mismatch,
    orders,
    product_precision,
)
from secede.seeding import derive, generator, seeded
from secede.state import State


class Simulator:
    """An engine over simulated clients, given as samples, tensors or map-style data sets."""

    def __init__(
        self,
        clients: Sequence[object],
        make_model: Callable[[], nn.Module],
        *,
        training: LocalTraining,
        seed: int,
        device: torch.device | str = "cpu",
        loss: Loss = nn.functional.cross_entropy,
        executor: str | Choice = "auto",
        precision: Precision = "float32",
    ) -> None:
        """Create the clients; a `Choice` as `executor` shares one between simulators.

        Sharing needs the same model, loss, training and precision.
        """
        check_precision(precision, device)
        self.clients = [as_samples(samples).to(device) for samples in clients]
        for index, samples in enumerate(self.clients):
            if len(samples) == 0:
                raise ConfigError(f"client {index} has no samples, expected at least one")
        self.own: dict[int, OwnState] = {}
        self.remembers = (
            True  # False: rounds leave `own` unchanged, for several arms from one state
        )
        self._phases: dict[int, str] = {}  # the phase that each client's own state comes from
        self._make_model = make_model
        self._training = training
        self._seed = seed
        self._device = torch.device(device)
        self._loss = loss
        with seeded(seed, "model", "worker"):
            template = make_model().to(device)
        if isinstance(executor, str):
            work = Work(model=template, training=training, loss=loss, precision=precision)
            executor = choose(executor, work, self.clients[0], clients=len(self.clients))
        self.choice = executor
        self._precision: Precision = precision
        # A copy: another thread may evaluate while the executor uses its model.
        self._evaluated = WorkingModel(self.choice.executor.lay_out(copy.deepcopy(template)))

    def initial_state(self, *name: str | int) -> dict[str, Tensor]:
        """Return a freshly initialised state; the same `name` gives the same state."""
        return states.of(self.fresh_model(*name))

    def fresh_model(self, *name: str | int) -> nn.Module:
        """Return a freshly initialised model; the same `name` gives the same values."""
        with seeded(self._seed, "model", *name):
            model = self._make_model().to(self._device)
        return self.choice.executor.lay_out(model)

    def model(self, state: State) -> nn.Module:
        """Return a model with `state`; the next call overwrites it, training does not.

        Buffers that are not part of a state are reset, so nothing passes from one use to the next.
        """
        self._evaluated.load(states.without_aliases(state, self._evaluated.model))
        return self._evaluated.model

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Train `clients` from `state`; store their own states if `remembers` is set."""
        started = self._clock()
        jobs = [self._job(client, state, phase, number) for client in clients]
        first_samples = [(job.samples.x[:1], job.samples.y[:1]) for job in jobs]
        with explain_mismatch(self._evaluated.model, self._loss, first_samples):
            trained = self.choice.executor.train(jobs)
        updates = tuple(
            Update(client, own, len(job.samples))
            for client, own, job in zip(clients, trained, jobs, strict=True)
        )
        if self.remembers:
            self._remember(updates, phase)
        sent_bytes = states.size_bytes(state) * len(updates)
        cost = Cost(
            rounds=1,
            upload_bytes=sent_bytes,
            download_bytes=sent_bytes,
            gradient_samples=sum(self._training.gradient_samples(u.samples) for u in updates),
            seconds=self._clock() - started,
        )
        return RoundReply(updates, cost)

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        """Run `task` with the data and the own state of `client`."""
        self._check_known(client)
        side = ClientSide(
            global_state=global_state,
            own=self.own.get(client),
            samples=len(self.clients[client]),
            training=self._training,
            fresh_model=lambda n: self.fresh_model("fresh", client, n),
            batches=lambda size, number: self._batches(client, size, number),
            loss=self._loss,
        )
        started = self._clock()
        name = ("ask", client, number) if number else ("ask", client)
        with seeded(self._seed, *name), product_precision(self._precision):
            reply = task(side)
        cost = Cost(
            upload_bytes=states.size_bytes(reply.state),
            download_bytes=states.size_bytes(global_state),
            gradient_samples=reply.gradient_samples,
            seconds=self._clock() - started,
        )
        return reply, cost

    def _remember(self, updates: Sequence[Update], phase: str) -> None:
        total = sum(update.samples for update in updates)
        for client, own in self.own.items():
            if self._phases.get(client) == phase:  # those in this round are overwritten below
                self.own[client] = replace(own, weight=0.0)
        for update in updates:
            self.own[update.client] = OwnState(_own_memory(update.state), update.samples / total)
            self._phases[update.client] = phase

    def _job(self, client: int, state: State, phase: str, number: int) -> Job:
        self._check_known(client)
        samples, name = self.clients[client], (phase, number, client)
        draw = generator(self._seed, "batches", *name)
        return Job(
            state=state,
            samples=samples,
            orders=orders(len(samples), self._training.epochs, draw),
            noise=derive(self._seed, "noise", *name),
        )

    def _batches(self, client: int, size: int, number: int) -> Iterator[Batch]:
        samples = self.clients[client]
        draw = generator(self._seed, "unlearning", client, number)
        return batches(samples, size, orders(len(samples), 1, draw)[0])

    def _check_known(self, client: int) -> None:
        if not 0 <= client < len(self.clients):
            raise ConfigError(f"unknown client {client}, expected 0 to {len(self.clients) - 1}")

    def _clock(self) -> float:
        if self._device.type == "cuda":
            # Not the whole device: other federations may be training on it.
            torch.cuda.current_stream(self._device).synchronize()
        return time.perf_counter()


def _own_memory(state: State) -> State:
    """Return `state` in its own memory: a row of a stack would keep all other rows alive."""
    return {
        name: value if value.untyped_storage().nbytes() <= value.nbytes else value.clone()
        for name, value in state.items()
    }
