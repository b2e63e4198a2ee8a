"""Fine-tuning: post-training straight from the global model. A baseline."""

from __future__ import annotations

from dataclasses import dataclass

from secede.unlearning.method import Method, Server, Start


@dataclass(frozen=True)
class FineTune(Method):
    """Let the retained clients go on training the global model without the leaver."""

    def start(self, server: Server) -> Start:
        """Return the global state as it is."""
        return Start(state=server.global_state)
