"""How far a label falls at most: to what a network that never saw the leaver might give it.

On samples with other labels the reference errs towards a class at a rate that the leaver can
measure; retraining is taken to err about as often. A network whose errors are common keeps that
rate: less would tell that something was erased. One that hardly errs keeps next to nothing: it
forgets past its rate, since post-training leads back. Never more than chance, and where few
samples have other labels, less: they could be the leaver's own doing, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from secede.federation.engine import Batch

WHOLE = 0.5  # all of the rate is kept where so many answers, or more, would be wrong
ENOUGH = 50  # samples with other labels; of fewer, the missing ones count as right


@torch.no_grad()
def natural_floor(model: nn.Module, samples: Sequence[Batch], classes: int) -> Tensor:
    """Return for each class the probability below which no label is lowered."""
    device = next(model.parameters()).device
    wrong = torch.zeros(classes, dtype=torch.float64, device=device)
    others = torch.zeros_like(wrong)
    for inputs, labels in samples:
        labels = labels.to(device).unsqueeze(1)
        answers = model(inputs.to(device)).softmax(dim=1).double()
        elsewhere = torch.ones_like(answers).scatter(1, labels, 0.0)
        wrong += (answers * elsewhere).sum(dim=0)
        others += elsewhere.sum(dim=0)
    rate = (wrong / others.clamp(min=ENOUGH)).clamp(max=1 / classes)
    errors = rate * (classes - 1)  # if it erred towards every class as often
    return (rate * (errors / WHOLE).clamp(max=1)).float()
