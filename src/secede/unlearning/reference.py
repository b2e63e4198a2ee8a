"""The reference alone: the mean of the others, then post-training. An ablation of the ascent.

Removing the leaver's last update leaves what it taught in all rounds before.
"""

from __future__ import annotations

from dataclasses import dataclass

from secede import state as states
from secede.unlearning.local import LocalReport, LocalResult, LocalTask


@dataclass(frozen=True)
class Reference:
    """Send back w_ref, computed by the leaver, without any step."""

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return the reference itself."""
        report = LocalReport(
            steps=0,
            ended_by="no-steps",
            distance_to_own=states.distance(task.reference, task.own_state),
            distance_to_reference=0.0,
            accuracy=None,
            loss=None,
            gradient_samples=0,
        )
        return LocalResult(task.reference, report)
