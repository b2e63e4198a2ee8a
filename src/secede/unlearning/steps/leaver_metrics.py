"""Loss and accuracy of a model on the leaver's own samples, and checks of those samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede.errors import DataError, StateError
from secede.federation.engine import Batch, Loss


@dataclass(frozen=True)
class Evaluation:
    """Mean loss over the batches, and accuracy where the outputs are class scores."""

    loss: float
    accuracy: float | None
    classes: int | None


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    loss: Loss,
    device: torch.device,
    labels_fit: bool = False,
) -> Evaluation:
    """Measure loss and accuracy over `batches` in evaluation mode, reading the device once.

    Raises if labels are out of range; `labels_fit` skips that check after an earlier evaluation.
    """
    model.eval()
    count, classes = 0, None
    # float64 holds every count of samples exactly, so both sums come back in one read.
    total = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.float64, device=device)
    with torch.inference_mode():
        for inputs, labels in batches:
            labels = labels.to(device)
            outputs = model(inputs.to(device))
            if _are_classes(outputs, labels):
                if not labels_fit:
                    _check_labels(outputs, labels)
                classes = outputs.shape[1]
                right += (outputs.argmax(dim=1) == labels).sum()
            total += loss(outputs, labels).double().reshape(()) * len(labels)
            count += len(labels)
        if count == 0:
            raise StateError("the leaver's batches are empty, expected at least one sample")
        sums = torch.stack((total, right)).tolist()
    return Evaluation(sums[0] / count, sums[1] / count if classes else None, classes)


def check_batch(batch: object) -> Batch:
    """Return `batch` if it is a pair of tensors with finite inputs."""
    if not (
        isinstance(batch, (tuple, list))
        and len(batch) == 2
        and all(isinstance(part, Tensor) for part in batch)
    ):
        raise DataError(f"a batch is {type(batch).__name__}, expected a pair (inputs, labels)")
    inputs, labels = batch
    if not (inputs.ndim and labels.ndim) or len(inputs) != len(labels) or not len(labels):
        raise DataError(
            f"a batch has inputs of shape {tuple(inputs.shape)} and labels of shape "
            f"{tuple(labels.shape)}, expected one label for each input, and at least one"
        )
    if labels.is_floating_point() and inputs.ndim < labels.ndim:
        raise DataError(
            f"a batch has inputs of shape {tuple(inputs.shape)} and labels of shape "
            f"{tuple(labels.shape)}: they look swapped, expected (inputs, labels)"
        )
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        raise DataError("the leaver's inputs hold values that are not finite, expected numbers")
    return inputs, labels


def _are_classes(outputs: Tensor, labels: Tensor) -> bool:
    """Return whether these are class scores and labels; if not, the loss decides what fits."""
    return outputs.ndim == 2 and labels.ndim == 1 and not labels.is_floating_point()


def _check_labels(outputs: Tensor, labels: Tensor) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= outputs.shape[1]:
        raise DataError(
            f"the leaver's labels run from {low} to {high}, but the model has {outputs.shape[1]} "
            "outputs"
        )
