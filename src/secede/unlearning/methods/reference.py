"""The reference alone: the mean of the others, then post-training. An ablation of the ascent.

Removing the leaver's last update leaves what it taught in all rounds before.
"""

from __future__ import annotations

from dataclasses import dataclass

from secede import state as states
from secede.errors import ConfigError
from secede.unlearning.local_step import LocalReport, LocalResult, LocalTask


@dataclass(frozen=True)
class Reference:
    """Send back w_ref, computed by the leaver, without any step."""

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return the reference itself; raise where that is the global state, leaver and all."""
        if task.own_weight == 0:
            raise ConfigError(
                "reference: the leaver missed the last round, so the others' mean is the global "
                "model and nothing would be forgotten; choose a method that takes steps"
            )
        report = LocalReport(
            steps=0,
            ended_by="no-steps",
            distance_to_own=_distance(task),
            distance_to_reference=0.0,
            accuracy=None,
            loss=None,
            gradient_samples=0,
        )
        return LocalResult(task.reference, report)


def _distance(task: LocalTask) -> float:
    """Return the distance to the own state, over what can move, as other steps tell it."""
    movable = [name for name, p in task.model.named_parameters() if p.requires_grad]
    here, there = (states.without_aliases(s, task.model) for s in (task.reference, task.own_state))
    return states.distance({n: here[n] for n in movable}, {n: there[n] for n in movable})
