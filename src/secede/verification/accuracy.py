"""Accuracy and loss of a model on samples.

Outputs are kept per sample (`Evidence`), so that attacks can be run again without the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from secede.data import Samples
from secede.errors import DataError, StateError
from secede.models.evaluation import evaluating
from secede.verification.score import Mean, Score, share

GPU_BATCH = 8192  # samples
GPU_BATCH_BYTES = 128 << 20  # of inputs: a model's activations are some tens of times as large


@dataclass(frozen=True)
class Evidence:
    """A model's outputs, finite float32 logits (n, classes) on the CPU, and the labels (n,)."""

    logits: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        _check_sizes(self.logits, self.labels)
        bad = int((~self.logits.isfinite()).any(dim=1).sum())
        if bad:
            raise StateError(
                f"the model's outputs are not finite for {bad} of {len(self.labels)} samples: "
                "it diverged; lower the learning rate or clip its gradients"
            )

    @cached_property
    def losses(self) -> Tensor:
        """Cross-entropy of each sample, in nats."""
        return functional.cross_entropy(self.logits, self.labels, reduction="none")

    @cached_property
    def predictions(self) -> Tensor:
        """Most likely class of each sample."""
        return self.logits.argmax(dim=1)

    def accuracy(self, mask: Tensor | None = None) -> Score:
        """Return the share of samples (those in `mask`) that are predicted right."""
        return accuracy(self.logits, self.labels, mask)

    def loss(self) -> Mean:
        """Return the mean cross-entropy, in nats."""
        return Mean(float(self.losses.double().mean()), len(self.labels))


def evaluate(model: nn.Module, samples: Samples, *, batch_size: int | None = None) -> Evidence:
    """Return the model's outputs for all samples, in order; the model does not change."""
    return evaluate_all(model, [samples], batch_size=batch_size)[0]


def evaluate_all(
    model: nn.Module, sets: Sequence[Samples], *, batch_size: int | None = None
) -> list[Evidence]:
    """Return the model's outputs for each set, computed in one pass over all of them.

    Outputs stay on the device until all are computed. By default a batch holds 256 samples
    on a CPU, where they fit the cache, and up to 8192 on a GPU; one that does not fit the GPU's
    memory is halved.
    """
    if not sets or any(len(samples) == 0 for samples in sets):
        raise DataError("no samples to evaluate the model on, expected at least one")
    inputs = [samples.x for samples in sets]
    sizes = [len(samples) for samples in sets]
    parameter = next(model.parameters(), None)
    device = inputs[0].device if parameter is None else parameter.device
    batch_size = batch_size or _default_batch_size(device, inputs[0])
    outputs: list[Tensor] = []
    start = 0
    with evaluating(model), torch.inference_mode():
        while start < sum(sizes):
            try:
                outputs.append(_logits(model, _rows(inputs, start, batch_size).to(device)))
            except torch.OutOfMemoryError:
                if batch_size == 1:
                    raise
                batch_size //= 2
            else:
                start += batch_size
    # Joined outside of inference mode, so that the logits are tensors like any other.
    logits = torch.cat(outputs).cpu()
    if len(logits) != sum(sizes):
        raise _misfit(logits, sum(sizes))
    labels = [samples.y.cpu() for samples in sets]
    return [Evidence(*pair) for pair in zip(logits.split(sizes), labels, strict=True)]


def _default_batch_size(device: torch.device, inputs: Tensor) -> int:
    if device.type == "cpu":
        return 256
    sample_bytes = inputs[0].numel() * inputs.element_size()
    return max(1, min(GPU_BATCH, GPU_BATCH_BYTES // max(1, sample_bytes)))


def _rows(parts: Sequence[Tensor], start: int, count: int) -> Tensor:
    """Return `count` rows from `start` on of the joined parts; copy only across two parts."""
    rows: list[Tensor] = []
    for part in parts:
        if start < len(part) and count > 0:
            rows.append(part[start : start + count])
            count -= len(rows[-1])
        start = max(0, start - len(part))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _logits(model: nn.Module, batch: Tensor) -> Tensor:
    output = model(batch)
    if not isinstance(output, Tensor):
        raise StateError(f"the model returned a {type(output).__name__}, expected logits")
    return output.to(torch.float32)


def accuracy(logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Score:
    """Return the share of samples (those in `mask`) whose largest logit is the label's."""
    _check_sizes(logits, labels)
    right = logits.argmax(dim=1) == labels
    if mask is not None:
        right = right[mask.to(right.device)]
    return share(int(right.sum()), len(right))


def _check_sizes(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 2 or len(logits) != len(labels):
        raise _misfit(logits, len(labels))
    low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if low < 0 or high >= logits.shape[1]:
        raise StateError(
            f"labels run from {low} to {high}, but the model has {logits.shape[1]} outputs"
        )


def _misfit(logits: Tensor, count: int) -> StateError:
    return StateError(
        f"outputs of shape {tuple(logits.shape)} for {count} samples, expected one row of logits "
        "each"
    )
