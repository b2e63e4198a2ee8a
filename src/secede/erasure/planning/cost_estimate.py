"""Estimate of a rung's cost in bytes: what a method sends before its rounds, and the rounds.

It follows from the model's size, who takes part and what each method does; no client is asked. A
method that stops on its own is estimated at its most, a user's own method as the plainest one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from secede import state as states
from secede.errors import ConfigError, RecordError
from secede.state import State
from secede.unlearning.method import Method
from secede.unlearning.methods.class_pruning import prunable_layers
from secede.unlearning.methods.federaser import FedEraser
from secede.unlearning.methods.orthogonal_descent import OrthogonalDescent
from secede.unlearning.registry import Entry
from secede.unlearning.update_history import UpdateHistory


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """What decides how many bytes travel."""

    model: State
    retained: int
    classes: int
    measure_at_leaver: bool  # it counts, too, in the end
    network: Callable[[], nn.Module]
    history: Callable[[], UpdateHistory | None]

    def rung_bytes(
        self, entry: Entry, method: Method, rounds: int, *, counted_once: bool
    ) -> tuple[int, int]:
        """Return the bytes up and down for the start and all of a rung's rounds.

        With `counted_once` clients count after the last round alone.
        """
        state = states.size_bytes(self.model)
        up, down = self._start(entry, method)
        models = rounds * self.retained * state
        counting = self.retained * (2 if counted_once else rounds + 2)
        counting += 2 * self.measure_at_leaver
        counts = 2 * 8 * self.classes
        return up + models + counting * counts, down + models + counting * state

    def _start(self, entry: Entry, method: Method) -> tuple[int, int]:
        """Return the bytes up and down before the first round."""
        state, everyone = states.size_bytes(self.model), self.retained + 1
        if isinstance(method, FedEraser):
            both = self._replays(method) * self.retained * state
            return both, both
        if isinstance(method, OrthogonalDescent):
            asked = method.rounds * everyone
            return asked * self._gradient(), asked * state
        if entry.name == "class-pruning":
            return everyone * self._activations(), everyone * state
        asked = {"leaver": 1, "everyone": everyone, "server": 0}[entry.runs_at]
        return asked * state, asked * state

    def _replays(self, method: FedEraser) -> int:
        """Return how many exchanges the replay takes: one for each kept round but the first."""
        try:
            history = self.history()
            rounds = () if history is None else history.rounds
        except (ConfigError, RecordError):  # it is damaged, and the rung will say so
            return 0
        return max(0, sum((number - 1) % method.interval == 0 for number in rounds) - 1)

    def _gradient(self) -> int:
        """Return the size of a gradient: of all that training moves."""
        movable = [n for n, p in self.network().named_parameters() if p.requires_grad]
        return states.size_bytes({name: self.model[name] for name in movable if name in self.model})

    def _activations(self) -> int:
        """Return the size of sums by class and channel, without rows of normalisation layers."""
        network = self.network()
        channels = [
            len(network.get_submodule(n).get_parameter("weight")) for n in prunable_layers(network)
        ]
        return 4 * self.classes * (sum(channels) + 1)
