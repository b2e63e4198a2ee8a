"""Retraining from scratch on the retained clients: exact, slow, and the measure of all others."""

from __future__ import annotations

from dataclasses import dataclass

from secede.unlearning.method import Method, Server, Start


@dataclass(frozen=True)
class Retrain(Method):
    """Start over from a freshly initialised model that never met the leaver."""

    def start(self, server: Server) -> Start:
        """Return a fresh state."""
        return Start(state=server.fresh_state())
