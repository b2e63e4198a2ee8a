"""Gradient ascent without a ball: the leaver climbs its own loss from the global model.

An ablation of projected ascent (Halimi et al. 2022, section 4.2), which adds a ball and an early
stop. Cross-entropy has no upper bound, so this may destroy the model. Defaults are those of
projected ascent. It always takes all its epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from secede.unlearning.method import LocalResult, LocalTask
from secede.unlearning.steps import Descent, check_settings, own_samples


@dataclass(frozen=True, kw_only=True)
class GradientAscent:
    """Unbounded loss ascent at the leaver."""

    learning_rate: float = 0.01
    momentum: float = 0.9
    batch_size: int = 1024
    epochs: int = 5
    clip: float = 5.0

    def __post_init__(self) -> None:
        check_settings(
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            clip=self.clip,
            batch_size=self.batch_size,
            epochs=self.epochs,
        )

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return the state after the last epoch."""
        descent = Descent(
            task.model,
            task.global_state,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            clip=self.clip,
        )
        samples = own_samples(task, self.batch_size)
        descent.evaluate(samples, task.loss)  # raises before the ascent if samples do not fit

        def negated_loss(outputs: Tensor, labels: Tensor) -> Tensor:
            return -task.loss(outputs, labels)

        for epoch in range(1, self.epochs + 1):
            for inputs, labels in task.batches(self.batch_size, epoch):
                descent.step(inputs, labels, negated_loss)
        return descent.result(task, samples, ended_by="epochs")
