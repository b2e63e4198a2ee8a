"""The floor of a label's probability: what a model that never saw the leaver might give it.

On samples with other labels the reference errs towards a class at a rate that the leaver can
measure; a retrained model is assumed to err about as often. Where errors are common the floor is
that rate: a lower probability would show that something was erased. Where errors are rare the
floor is near zero, since post-training brings some of the label back. It is at most chance, and
lower if few samples have other labels: their errors could be the leaver's own doing, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from secede.federation.engine import Batch

FULL_FLOOR_ERROR_RATE = 0.5  # from this error rate on, the floor is the whole rate
MIN_OTHER_SAMPLES = 50  # samples with other labels; missing ones count as right


@torch.no_grad()
def natural_floor(model: nn.Module, samples: Sequence[Batch], classes: int) -> Tensor:
    """Return, for each class, the probability below which its label is not lowered."""
    device = next(model.parameters()).device
    wrong = torch.zeros(classes, dtype=torch.float64, device=device)
    others = torch.zeros_like(wrong)
    for inputs, labels in samples:
        labels = labels.to(device).unsqueeze(1)
        probabilities = model(inputs.to(device)).softmax(dim=1).double()
        other_classes = torch.ones_like(probabilities).scatter(1, labels, 0.0)
        wrong += (probabilities * other_classes).sum(dim=0)
        others += other_classes.sum(dim=0)
    rate = (wrong / others.clamp(min=MIN_OTHER_SAMPLES)).clamp(max=1 / classes)
    errors = rate * (classes - 1)  # if the model erred towards every class as often
    return (rate * (errors / FULL_FLOOR_ERROR_RATE).clamp(max=1)).float()
