"""Distillation: subtract the leaver's updates, then distil the old model into the result.

Wu, Zhu, Mitra 2022, "Federated Unlearning with Knowledge Distillation". The server subtracts the
leaver's weighted updates of all rounds and distils the old global model's soft labels on unlabelled
inputs of its own; no client takes part. The paper wants a high temperature but gives neither its
value nor the schedule: both are ours, as is the factor T² (Hinton et al. 2015). Statistics of
normalisation layers are not subtracted but relearnt from the server's inputs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from secede import state as states
from secede.errors import ConfigError, DataError, StateError
from secede.federation.engine import Cost
from secede.federation.training import trainable
from secede.seeding import generator, seeded
from secede.state import State
from secede.unlearning.method import Method, Server, Start


@dataclass(frozen=True, kw_only=True)
class Distillation(Method):
    """Subtraction at the server, then distillation from the old global model."""

    epochs: int = 5
    temperature: float = 3.0
    learning_rate: float = 0.01
    momentum: float = 0.9
    batch_size: int = 128
    clip: float = 5.0  # of the gradient's norm: it is large after the subtraction

    def __post_init__(self) -> None:
        for name in ("epochs", "temperature", "learning_rate", "batch_size", "clip"):
            value = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"{name} must be positive, got {value}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be at least 0 and below 1, got {self.momentum}")

    def start(self, server: Server) -> Start:
        """Subtract and distil; nothing is sent, and the cost counts the server's own gradients."""
        inputs = _unlabelled_inputs(server)
        device = next(iter(server.global_state.values())).device
        started = _clock(device)
        student, teacher = server.fresh_model(), server.fresh_model()
        states.load_into(teacher, server.global_state)
        subtracted = _subtracted(server, student)
        states.load_into(student, subtracted)
        # The order of the batches must not depend on earlier runs: the model's digest seeds it.
        name = ("distillation", states.digest(server.global_state))
        with seeded(0, *name):
            self._distil(student, self._soft_labels(teacher, inputs), inputs, *name)
        state = states.of(student)
        if not states.is_finite(state):
            raise StateError(
                "the distillation gave values that are not finite: lower the learning rate or the "
                "clip"
            )
        gradients = self.epochs * len(inputs)
        return Start(
            state=state,
            cost=Cost(gradient_samples=gradients, seconds=_clock(device) - started),
            report={
                "subtracted_distance": states.distance(subtracted, server.global_state),
                "distilled_distance": states.distance(state, subtracted),
                "gradient_samples": gradients,
            },
        )

    def _soft_labels(self, teacher: nn.Module, inputs: Tensor) -> Tensor:
        teacher.eval()
        device = next(teacher.parameters()).device
        with torch.no_grad():
            outputs = [teacher(part.to(device)) for part in inputs.split(self.batch_size)]
        return functional.softmax(torch.cat(outputs) / self.temperature, dim=1)

    def _distil(self, student: nn.Module, soft: Tensor, inputs: Tensor, *name: str) -> None:
        """Train `student` in place on the soft labels."""
        parameters = trainable(student)
        optimiser = torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)
        student.train()
        for chosen in self._orders(len(inputs), generator(0, *name)):
            optimiser.zero_grad(set_to_none=True)
            outputs = student(inputs[chosen.to(inputs.device)].to(soft.device))
            log_probabilities = functional.log_softmax(outputs / self.temperature, dim=1)
            targets = soft[chosen.to(soft.device)]
            loss = functional.kl_div(log_probabilities, targets, reduction="batchmean")
            (loss * self.temperature**2).backward()
            nn.utils.clip_grad_norm_(parameters, self.clip)
            optimiser.step()

    def _orders(self, count: int, draw: torch.Generator) -> Iterator[Tensor]:
        """Yield batches of nearly equal size: none holds a single left-over sample."""
        for _ in range(self.epochs):
            order = torch.randperm(count, generator=draw)
            yield from order.tensor_split(-(-count // self.batch_size))


def _unlabelled_inputs(server: Server) -> Tensor:
    if server.unlabelled is None or not len(server.unlabelled):
        raise ConfigError(
            "distillation needs unlabelled data at the server, and there is none: set "
            "situation.server_data"
        )
    if not bool(torch.isfinite(server.unlabelled).all()):
        raise DataError(
            "the server's unlabelled inputs hold values that are not finite, expected numbers"
        )
    return server.unlabelled


def _subtracted(server: Server, model: nn.Module) -> State:
    """Return the global state minus the leaver's weighted updates of trainable parameters."""
    if server.history is None:
        raise ConfigError(
            "distillation needs the sum of the leaver's updates, and the server kept no history: "
            "set situation.history and train again"
        )
    device = next(iter(server.global_state.values())).device
    update_sum = states.to(server.history.update_sum(server.leaver), device)
    shifted = states.shifted(server.global_state, update_sum, scale=-1)
    trainable_names = {name for name, value in model.named_parameters() if value.requires_grad}
    return {
        name: shifted[name] if name in trainable_names else value
        for name, value in server.global_state.items()
    }


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return time.perf_counter()
