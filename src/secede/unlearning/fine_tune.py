"""Fine-tuning alone: post-training straight from the global model, an ablation."""

from __future__ import annotations

from dataclasses import dataclass

from secede.state import State
from secede.unlearning.server import ServerSide


@dataclass(frozen=True)
class FineTune:
    """Let the retained clients go on training the global model without the leaver."""

    def start(self, side: ServerSide) -> State:
        """Return the global state as it is."""
        return side.global_state
