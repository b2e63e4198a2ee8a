"""Retraining from scratch on the retained clients: exact and slow, the gold standard."""

from __future__ import annotations

from dataclasses import dataclass

from secede.unlearning.method import Method, Server, Start


@dataclass(frozen=True)
class Retrain(Method):
    """Start from a freshly initialised model, which never saw the leaver."""

    def start(self, server: Server) -> Start:
        """Return a fresh state."""
        return Start(state=server.fresh_state())
