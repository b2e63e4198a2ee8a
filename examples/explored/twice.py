"""Second choice, and a short second step of the leaver: tried against reverting, not a default.

Before a later round of post-training the leaver is asked once more: from where the others are by
now it lowers the same labels again, until they are at chance or its steps are used up. What leads
back from there to the old model is held as in any later round. It takes the leaver for longer and
a second upload, which no guard has seen: for simulations only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from secede import state as states
from secede.errors import ConfigError
from secede.state import State
from secede.unlearning.method import LocalResult, LocalTask, Recovered, Server, TakeStep
from secede.unlearning.methods.second_choice import SecondChoice
from secede.unlearning.registry import Needs


@dataclass(frozen=True, kw_only=True)
class Twice(SecondChoice):
    """Second choice with a second step of a few batches."""

    needs: ClassVar[Needs] = Needs(leaver_online=True)
    before: int = 2  # round of post-training before which the leaver steps again
    again: int = 12  # steps at most: a quarter of an epoch with 1,600 images in batches of 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.before < 2:
            raise ConfigError(f"before must be 2 or more, got {self.before}")
        if self.again < 1:
            raise ConfigError(f"again must be 1 or more, got {self.again}")

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Take a round; before one of them, ask the leaver again."""
        if number != self.before:
            return super().recover(server, state, memory, number)
        old = server.global_state
        step = TakeStep(_Again(self, state))
        result, cost = server.engine.ask(server.leaver, step, global_state=old, number=number)
        held = [name for name in memory if name in old]
        here, there = ({name: found[name] for name in held} for found in (result.state, old))
        memory = {**memory, **states.difference(there, here)}
        found = super().recover(server, result.state, memory, number)
        return Recovered(state=found.state, cost=found.cost + cost, memory=found.memory)


@dataclass(frozen=True)
class _Again:
    """The same lesson, from where the others are by now."""

    how: Twice
    here: State

    def unlearn(self, task: LocalTask) -> LocalResult:
        return self.how.unlearn_again(task, self.here, max_steps=self.how.again)
