"""FedEraser: replay the recorded rounds without the leaver, with calibrated updates.

Liu, Ma, Yang, Wang, Liu 2021, IWQoS. From the initial model, the retained clients of each recorded
round train a little: that gives an update's direction, the recorded update gives its length. As in
the text, round 1 is replayed as recorded, and lengths are each client's own (the published code
takes those of the mean, from the model after the round); as in that code, tensor by tensor. Ours: a
plain weighted mean (the text divides by K − 1 again), parts of epochs, buffers as newly trained.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from secede import state as states
from secede.errors import ConfigError, RecordError
from secede.federation.engine import ClientSide, Cost
from secede.state import State
from secede.unlearning.method import Method, Reply, Server, Start, ask_each
from secede.unlearning.steps import train_client
from secede.unlearning.update_history import RecordedRound, UpdateHistory


@dataclass(frozen=True, kw_only=True)
class FedEraser(Method):
    """Calibrated replay of the recorded rounds; defaults are the paper's."""

    interval: int = 2  # rounds from one replayed round to the next: a multiple of the history's
    calibration_ratio: float = 0.5  # of the batches of a client's round

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ConfigError(f"interval must be 1 or more, got {self.interval}")
        if not 0 < self.calibration_ratio <= 1:
            raise ConfigError(
                f"calibration_ratio must be above 0 and at most 1, got {self.calibration_ratio}"
            )

    def check_history(self, history: UpdateHistory | None) -> None:
        """Raise unless the history records the rounds to replay."""
        if history is None:
            raise ConfigError(
                "federaser needs the updates that clients sent while training, and the server "
                "kept no history: set situation.history and train again"
            )
        if self.interval % history.interval:
            raise ConfigError(
                f"federaser's interval (settings.federaser.interval) is {self.interval}, expected "
                f"a multiple of situation.history_interval, which is {history.interval}"
            )

    def start(self, server: Server) -> Start:
        """Replay the recorded rounds: one exchange for each but the first."""
        history, rounds = self._rounds(server)
        device = next(iter(server.global_state.values())).device
        parameters = server.fresh_model().named_parameters()
        trainable_names = {name for name, value in parameters if value.requires_grad}
        recorded = _without_leaver(history, rounds[0], server, device)
        state, cost, gradients = _as_recorded(recorded), Cost(), 0
        for number in rounds[1:]:
            recorded = _without_leaver(history, number, server, device)
            if not recorded.updates:  # only the leaver took part
                continue
            replies, round_cost = ask_each(
                server.engine,
                tuple(recorded.updates),
                partial(self._calibrate, number=number),
                global_state=state,
                number=number,
            )
            trained = [reply.state for reply in replies]
            state = _step(state, trained, recorded, trainable_names)
            states.check_finite(state, f"the model after the replay of round {number}")
            cost, gradients = cost + round_cost, gradients + round_cost.gradient_samples
        report = {"replayed_rounds": len(rounds), "calibrations": cost.rounds}
        return Start(state=state, cost=cost, report={**report, "gradient_samples": gradients})

    def _rounds(self, server: Server) -> tuple[UpdateHistory, tuple[int, ...]]:
        self.check_history(server.history)
        assert server.history is not None  # check_history raises
        rounds = tuple(n for n in server.history.rounds if (n - 1) % self.interval == 0)
        if not rounds:
            raise RecordError(
                "the history holds no round to replay: train with situation.history first"
            )
        return server.history, rounds

    def _calibrate(self, side: ClientSide, number: int) -> Reply:
        """Train on a part of a round's batches, from the replayed model so far."""
        return train_client(
            side,
            number=number,
            learning_rate=side.training.learning_rate,
            momentum=side.training.momentum,
            share=self.calibration_ratio,
        )


def _without_leaver(
    history: UpdateHistory, number: int, server: Server, device: torch.device
) -> RecordedRound:
    """Return a recorded round with the updates of the retained clients that took part."""
    recorded = history.round(number)
    updates = {
        client: states.to(recorded.updates[client], device)
        for client in server.retained
        if client in recorded.updates
    }
    return RecordedRound(states.to(recorded.before, device), updates, recorded.weights)


def _as_recorded(recorded: RecordedRound) -> dict[str, Tensor]:
    """Return the retained clients' mean after the first round, whose start never saw the leaver."""
    if not recorded.updates:
        return dict(recorded.before)
    weights = [recorded.weights[client] for client in recorded.updates]
    return states.shifted(recorded.before, states.mean(list(recorded.updates.values()), weights))


def _step(
    state: State, trained: list[State], recorded: RecordedRound, trainable_names: Set[str]
) -> dict[str, Tensor]:
    """Return the mean of the calibrated updates; buffers are the mean of the clients' own."""
    stepped = list[State]()
    for own, recorded_update in zip(trained, recorded.updates.values(), strict=True):
        change = states.with_lengths(states.difference(own, state), recorded_update)
        calibrated = states.shifted(state, change)
        stepped.append(
            {name: (calibrated if name in trainable_names else own)[name] for name in own}
        )
    return states.mean(stepped, [recorded.weights[client] for client in recorded.updates])
