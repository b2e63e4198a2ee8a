"""Retraining from scratch on the retained clients: exact, slow, and the measure of all others."""

from __future__ import annotations

from dataclasses import dataclass

from secede.state import State
from secede.unlearning.server import ServerSide


@dataclass(frozen=True)
class Retrain:
    """Start over from a freshly initialised model that never met the leaver."""

    def start(self, side: ServerSide) -> State:
        """Return a fresh state."""
        return side.fresh_state()
