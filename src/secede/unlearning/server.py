"""What a server method is given: it starts post-training without asking the leaver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from secede.state import State


@dataclass(frozen=True, kw_only=True)
class ServerSide:
    """What the server has without any history: the global state and the model's recipe."""

    global_state: State
    fresh_state: Callable[[], State]


class ServerMethod(Protocol):
    """Unlearning that the server starts on its own."""

    def start(self, side: ServerSide) -> State:
        """Return the state that the retained clients train from."""
        ...
