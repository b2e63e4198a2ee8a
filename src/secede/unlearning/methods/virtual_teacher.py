"""Virtual teacher: the leaver distils the model's own outputs with the true class lowered.

Mora, Valerio, Bellavista, Passarella 2024, "FedQUIT: On-Device Federated Unlearning via a
Quasi-Competent Virtual Teacher", in the variant of its newer scripts: the true class's logit is set
to the sample's smallest; KL divergence, temperature 1, one epoch (older scripts: 20). They use Adam
at 1e-4 (1e-3 with data dealt evenly) and batches of 32: `optimiser = "adam"`. By default we use SGD
and batches as in the federation's rounds; we clip gradients and fix normalisation statistics. The
teacher is the model that the student starts from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from secede.errors import ConfigError
from secede.unlearning.method import LocalResult, LocalTask
from secede.unlearning.post_training_hold import PostTrainingHold
from secede.unlearning.steps import Descent, Optimiser, check_settings, frozen, own_samples

_ADAM_RATE, _ADAM_BATCH_SIZE = 1e-4, 32  # as published


@dataclass(frozen=True, kw_only=True)
class VirtualTeacher(PostTrainingHold):
    """Distillation from the outputs of the start state, without the true class."""

    begin: Literal["global", "reference"] = "global"
    label: Literal["minimum", "removed"] = "minimum"  # the true class's logit; "removed": −∞
    optimiser: Optimiser = "sgd"
    # None: as in the leaver's own training; of Adam, as published: 1e-4 and 32.
    learning_rate: float | None = None
    batch_size: int | None = None
    momentum: float | None = None  # of SGD
    epochs: int = 1
    temperature: float = 1.0
    clip: float = 5.0

    def __post_init__(self) -> None:
        check_settings(
            learning_rate=1.0 if self.learning_rate is None else self.learning_rate,
            momentum=0.0 if self.momentum is None else self.momentum,
            clip=self.clip,
            batch_size=1 if self.batch_size is None else self.batch_size,
            epochs=self.epochs,
        )
        self.check_hold()
        if self.optimiser not in ("sgd", "adam"):
            raise ConfigError(f"optimiser must be 'sgd' or 'adam', got {self.optimiser!r}")
        if self.optimiser == "adam" and self.momentum is not None:
            raise ConfigError(
                f"momentum is {self.momentum}, but Adam takes none: leave it out, or set optimiser "
                "to 'sgd'"
            )
        if not self.temperature > 0:
            raise ConfigError(f"temperature must be positive, got {self.temperature}")
        if self.begin not in ("global", "reference"):
            raise ConfigError(f"begin must be 'global' or 'reference', got {self.begin!r}")
        if self.label not in ("minimum", "removed"):
            raise ConfigError(f"label must be 'minimum' or 'removed', got {self.label!r}")

    def unlearn(self, task: LocalTask) -> LocalResult:
        """Return the student after its last epoch."""
        start = task.global_state if self.begin == "global" else task.reference
        rate, batch_size = self._rate_and_batch_size(task)
        teacher = frozen(task.model, start)
        student = Descent.as_trained(
            task,
            start,
            learning_rate=rate,
            momentum=self.momentum,
            clip=self.clip,
            optimiser=self.optimiser,
        )
        samples = own_samples(task, batch_size)
        student.count_classes(samples, task.loss, "virtual-teacher")
        for epoch in range(1, self.epochs + 1):
            for inputs, labels in task.batches(batch_size, epoch):
                inputs, labels = inputs.to(student.device), labels.to(student.device)
                with torch.no_grad():
                    targets = self._targets(teacher(inputs), labels)
                student.step(inputs, targets, self._divergence)
        return student.result(task, samples, ended_by="epochs")

    def _rate_and_batch_size(self, task: LocalTask) -> tuple[float, int]:
        """Return the settings that are given, or else the optimiser's defaults."""
        training = task.training
        usual = (
            (_ADAM_RATE, _ADAM_BATCH_SIZE)
            if self.optimiser == "adam"
            else (training.learning_rate, training.batch_size)
        )
        return self.learning_rate or usual[0], self.batch_size or usual[1]

    def _targets(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the teacher's class probabilities with the true class lowered."""
        if self.label == "minimum":
            lowered = logits.amin(dim=1, keepdim=True)
        else:
            lowered = torch.full_like(logits[:, :1], -torch.inf)
        changed = logits.scatter(1, labels[:, None], lowered)
        return (changed / self.temperature).softmax(dim=1)

    def _divergence(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean KL divergence from the targets."""
        log_probabilities = (outputs / self.temperature).log_softmax(dim=1)
        return nn.functional.kl_div(log_probabilities, targets, reduction="batchmean")
