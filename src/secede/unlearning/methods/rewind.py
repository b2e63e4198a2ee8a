"""Rewind: train on from the last stored global model that never saw the leaver. Exact.

Of the models that the history holds it takes the latest from before the leaver's first round, at
worst the untrained initial one, and repeats the rest of the training without the leaver. What comes
out never depended on the leaver's data; it is retraining, shortened by the rounds before it joined.
"""

from __future__ import annotations

from dataclasses import dataclass

from secede import state as states
from secede.errors import ConfigError
from secede.state import State
from secede.unlearning.method import Method, Server, Start
from secede.unlearning.steps import train_retained
from secede.unlearning.update_history import UpdateHistory


@dataclass(frozen=True, kw_only=True)
class Rewind(Method):
    """The rest of the training again, without the leaver."""

    rounds: int | None = None  # to train from there; None: as many as the training had left

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 0:
            raise ConfigError(f"rounds must be 0 or more, got {self.rounds}")

    def check_history(self, history: UpdateHistory | None) -> None:
        """Raise if the server keeps no history."""
        needed_history(history, "rewind")

    def start(self, server: Server) -> Start:
        """Return the model after the rest of the training without the leaver."""
        done, before, rounds = self._plan(server)
        device = next(iter(server.global_state.values())).device
        state, cost = train_retained(
            server, states.to(before, device), phase="rewind", first=done + 1, rounds=rounds
        )
        return Start(state=state, cost=cost, report={"kept_rounds": done, "trained_rounds": rounds})

    def rounds_to_train(self, server: Server) -> int:
        """Return how many rounds the start takes."""
        return self._plan(server)[2]

    def _plan(self, server: Server) -> tuple[int, State, int]:
        """Return the rounds that are kept, the model after them, and the rounds to train."""
        history = needed_history(server.history, "rewind")
        gaps = history.gaps(server.leaver)
        joined = next((n for n, gap in enumerate(gaps, start=1) if gap is not None), len(gaps))
        number, before = history.before(joined)
        left = len(gaps) - (number - 1)
        return number - 1, before, left if self.rounds is None else self.rounds


def needed_history(history: UpdateHistory | None, method: str) -> UpdateHistory:
    """Return the history; raise if there is none."""
    if history is None:
        raise ConfigError(
            f"{method} needs the global models of the training, and the server kept no history: "
            "set situation.history and train again"
        )
    return history
