"""The reference alone: the mean of the others, then post-training. An ablation of the ascent.

It removes the leaver's last update and keeps what the leaver taught in all rounds before.
"""

from __future__ import annotations

from dataclasses import dataclass

from secede import state as states
from secede.errors import ConfigError
from secede.unlearning.method import LocalReport, LocalResult, LocalTask


@dataclass(frozen=True)
class Reference:
    """Return w_ref, computed by the leaver, without any step."""

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return the reference; raise if it is the global state, which still holds the leaver."""
        if task.own_weight == 0:
            raise ConfigError(
                "reference: the leaver missed the last round, so the others' mean is the global "
                "model and nothing would be forgotten; choose another method"
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
    """Return the distance to the own state, over the trainable parameters."""
    names = [name for name, p in task.model.named_parameters() if p.requires_grad]
    reference, own = (
        states.without_aliases(state, task.model) for state in (task.reference, task.own_state)
    )
    return states.distance({n: reference[n] for n in names}, {n: own[n] for n in names})
