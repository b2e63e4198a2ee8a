"""FedEraser: replay the kept rounds without the leaver, each update turned to where it leads now.

From the initial model, each kept round's retained clients train a little; that gives the direction,
the update they once sent gives the length. Liu, Ma, Yang, Wang, Liu 2021, IWQoS. As in the text,
round 1 is replayed as it was and lengths are each client's own (the published code takes them of
the mean, from the model after the round); as in that code, tensor by tensor. Ours: a plain weighted
mean (the text divides by K − 1 once more), parts of epochs, buffers as newly trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from secede import state as states
from secede.errors import ConfigError, RecordError
from secede.federation.cost import Cost
from secede.federation.engine import Batch, ClientSide
from secede.federation.training import batch_loss, trainable
from secede.state import State
from secede.unlearning.method import Method, Reply, Server, Start, ask_each
from secede.unlearning.update_history import Kept, UpdateHistory


@dataclass(frozen=True, kw_only=True)
class FedEraser(Method):
    """Calibrated replay of what the server kept; defaults are the paper's."""

    interval: int = 2  # rounds from one replayed round to the next: a multiple of the history's
    calibration_ratio: float = 0.5  # of the batches that a client trains on in a round

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ConfigError(f"interval must be 1 or more, got {self.interval}")
        if not 0 < self.calibration_ratio <= 1:
            raise ConfigError(
                f"calibration_ratio must be above 0 and at most 1, got {self.calibration_ratio}"
            )

    def check_history(self, history: UpdateHistory | None) -> None:
        """Raise unless the rounds to replay are among those that the history keeps."""
        if history is None:
            raise ConfigError(
                "federaser needs the updates that clients sent while training, and the server "
                "kept no history: train with one (situation.history)"
            )
        if self.interval % history.interval:
            raise ConfigError(
                f"federaser's interval (settings.federaser.interval) is {self.interval}, expected "
                f"a multiple of situation.history_interval, which is {history.interval}"
            )

    def start(self, server: Server) -> Start:
        """Replay the kept rounds: one exchange for each but the first."""
        history, rounds = self._rounds(server)
        device = next(iter(server.global_state.values())).device
        parameters = server.fresh_model().named_parameters()
        movable = {name for name, value in parameters if value.requires_grad}
        kept = _without_leaver(history, rounds[0], server, device)
        state, cost, gradients = _as_it_was(kept), Cost(), 0
        for number in rounds[1:]:
            kept = _without_leaver(history, number, server, device)
            if not kept.updates:  # only the leaver took part
                continue
            replies, one = ask_each(
                server.engine,
                tuple(kept.updates),
                partial(self._calibrate, number=number),
                global_state=state,
                number=number,
            )
            state = _step(state, [reply.state for reply in replies], kept, movable)
            states.check_finite(state, f"the model after the replay of round {number}")
            cost, gradients = cost + one, gradients + one.gradient_samples
        report = {"replayed_rounds": len(rounds), "calibrations": cost.rounds}
        return Start(state=state, cost=cost, report={**report, "gradient_samples": gradients})

    def _rounds(self, server: Server) -> tuple[UpdateHistory, tuple[int, ...]]:
        self.check_history(server.history)
        assert server.history is not None  # that was checked
        rounds = tuple(n for n in server.history.rounds if (n - 1) % self.interval == 0)
        if not rounds:
            raise RecordError("the history holds no round to replay: train with it first")
        return server.history, rounds

    def _calibrate(self, side: ClientSide, number: int) -> Reply:
        """Train on a part of a round's batches from the model as calibrated so far."""
        how = side.training
        model = side.fresh_model(0)
        states.load_into(model, side.global_state)
        optimiser = torch.optim.SGD(trainable(model), lr=how.learning_rate, momentum=how.momentum)
        whole = how.epochs * math.ceil(side.samples / how.batch_size)
        steps = math.ceil(round(self.calibration_ratio * whole, 9))  # 0.1 · 30 is a bit above 3
        model.train()
        gradients = 0
        for inputs, labels in islice(_passes(side, number), steps):
            optimiser.zero_grad(set_to_none=True)
            loss = batch_loss(model, inputs, labels, loss=side.loss, precision="float32")
            loss.backward()
            optimiser.step()
            gradients += len(labels)
        return Reply(state=states.of(model), gradient_samples=gradients, samples=side.samples)


def _passes(side: ClientSide, number: int) -> Iterator[Batch]:
    for epoch in range(side.training.epochs):
        yield from side.batches(side.training.batch_size, number * side.training.epochs + epoch)


def _without_leaver(
    history: UpdateHistory, number: int, server: Server, device: torch.device
) -> Kept:
    """Return what the retained clients sent in a kept round; one that missed it is not there."""
    kept = history.round(number)
    updates = {
        client: states.to(kept.updates[client], device)
        for client in server.retained
        if client in kept.updates
    }
    return Kept(states.to(kept.before, device), updates, kept.weights)


def _as_it_was(kept: Kept) -> dict[str, Tensor]:
    """Return the retained clients' mean after a round whose start knew nothing of the leaver."""
    if not kept.updates:
        return dict(kept.before)
    weights = [kept.weights[client] for client in kept.updates]
    return states.shifted(kept.before, states.mean(list(kept.updates.values()), weights))


def _step(state: State, trained: list[State], kept: Kept, movable: Set[str]) -> dict[str, Tensor]:
    """Step to the mean of the calibrated updates; what no gradient moves is the clients' mean."""
    stepped = list[State]()
    for own, sent in zip(trained, kept.updates.values(), strict=True):
        change = states.with_lengths(states.difference(own, state), sent)
        moved = states.shifted(state, change)
        stepped.append({name: (moved if name in movable else own)[name] for name in own})
    return states.mean(stepped, [kept.weights[client] for client in kept.updates])
