"""Noisy rewind: go back to a model that the leaver hardly moved, add noise, and train on.

Fraboni, Van Waerebeke, Scaman, Vidal, Kameni, Lorenzi 2024, AISTATS (SIFU; one request, so IFU).
A round moves the mean by a gap, p / (1 − p) times the leaver's distance from it; the sum of gaps
bounds how far the model is from one trained without the leaver, if a round brings two models no
further apart. That holds for convex losses and short steps: `growth` is the factor for others. Its
budget is epsilon · sigma / sqrt(2 ln(1.25 / delta)). Defaults are those of the published script.
Ours: no noise where the bound is 0, none on buffers, which are those of the first model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from secede import state as states
from secede.errors import ConfigError
from secede.seeding import generator
from secede.state import State
from secede.unlearning.method import Method, Server, Start
from secede.unlearning.methods.rewind import needed_history
from secede.unlearning.steps import train_retained
from secede.unlearning.update_history import UpdateHistory

_MAX_EPSILON = 100.0  # beyond it nothing is promised, and e to its power overflows


@dataclass(frozen=True, kw_only=True)
class NoisyRewind(Method):
    """The rest of the training again, from the last model within the budget, with noise."""

    epsilon: float = 10.0
    delta: float | None = None  # None: one over the number of clients
    sigma: float = 0.05  # standard deviation of the noise on each weight
    growth: float = 1.0  # by which factor a round may bring two models apart
    rounds: int | None = None  # to train from there; None: as many as the training had left

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= _MAX_EPSILON:
            raise ConfigError(
                f"epsilon must be above 0 and at most {_MAX_EPSILON:g}, got {self.epsilon}"
            )
        if self.delta is not None and not 0 < self.delta < 1:
            raise ConfigError(f"delta must be above 0 and below 1, got {self.delta}")
        for name in ("sigma", "growth"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} must be positive, got {value}")
        if self.rounds is not None and self.rounds < 0:
            raise ConfigError(f"rounds must be 0 or more, got {self.rounds}")

    def check_history(self, history: UpdateHistory | None) -> None:
        """Raise if the server keeps no history."""
        needed_history(history, "noisy-rewind")

    def start(self, server: Server) -> Start:
        """Return the model after the noise and the rest of the training without the leaver."""
        history = needed_history(server.history, "noisy-rewind")
        bounds = sensitivities(history.gaps(server.leaver), self.growth)
        delta = 1 / (len(server.retained) + 1) if self.delta is None else self.delta
        budget = largest_sensitivity(self.sigma, self.epsilon, delta)
        # bounds[n] is of the model before round n + 1.
        above = next((n for n, bound in enumerate(bounds) if bound > budget), len(bounds))
        number, before = history.before(above)
        bound, left = bounds[number - 1], len(bounds) - number
        rounds = left if self.rounds is None else self.rounds
        device = next(iter(server.global_state.values())).device
        noisy = states.to(self._with_noise(before, bound, server, history), device)
        state, cost = train_retained(
            server, noisy, phase="noisy-rewind", first=number, rounds=rounds
        )
        report = {
            "kept_rounds": number - 1,
            "trained_rounds": rounds,
            "sensitivity": bound,
            "budget": budget,
            "sensitivity_at_the_end": bounds[-1],
            "delta": delta,
            "exact_delta": exact_delta(bound, self.sigma, self.epsilon),
        }
        return Start(state=state, cost=cost, report=report)

    def _with_noise(
        self, state: State, bound: float, server: Server, history: UpdateHistory
    ) -> State:
        """Return `state` with noise on its parameters, and the first model's buffers."""
        if bound == 0:  # it never saw the leaver
            return state
        first = history.before(1)[1]
        names = [n for n, p in server.fresh_model().named_parameters() if p.requires_grad]
        # No draw may depend on earlier runs: the models' digests seed it.
        seeds = (states.digest(server.global_state), states.digest(server.fresh_state()))
        draw = generator(0, "noisy-rewind", *seeds)
        noise = {n: self.sigma * torch.randn(state[n].shape, generator=draw) for n in names}
        return {**first, **{n: state[n] + noise[n].to(state[n]) for n in names}}


def sensitivities(gaps: Sequence[float | None], growth: float = 1.0) -> tuple[float, ...]:
    """Return the bound before the first round and after each, from the leaver's gaps."""
    bounds = [0.0]
    for gap in gaps:
        bounds.append(growth * bounds[-1] + (gap or 0.0))
    return tuple(bounds)


def largest_sensitivity(sigma: float, epsilon: float, delta: float) -> float:
    """Return the sensitivity that noise of `sigma` hides by the classical Gaussian mechanism."""
    return epsilon * sigma / math.sqrt(2 * math.log(1.25 / delta))


def exact_delta(sensitivity: float, sigma: float, epsilon: float) -> float:
    """Return the least delta of that noise at `epsilon` (Balle and Wang 2018, theorem 8).

    The classical formula is proved for an epsilon below 1; beyond it this may be larger.
    """
    if not sensitivity:
        return 0.0
    if math.isinf(sensitivity):
        return 1.0
    half, shift = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return _normal(half - shift) - math.exp(epsilon) * _normal(-half - shift)


def _normal(value: float) -> float:
    """Return the standard normal distribution function."""
    return math.erfc(-value / math.sqrt(2)) / 2
