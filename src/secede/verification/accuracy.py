"""Still useful, or forgotten? A model's answers to samples, and the share that is right.

The answers are kept per sample (`Evidence`), so that attacks can be re-run without the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from secede.data.samples import Samples
from secede.errors import DataError, StateError
from secede.models.evaluation import evaluating
from secede.verification.score import Mean, Score, share


@dataclass(frozen=True)
class Evidence:
    """What a model answered: finite float32 logits (n, classes) on the CPU, and the labels (n,)."""

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
    """Return the model's answers to all samples, in their order; the model stays as it was.

    By default a batch holds 1024 samples on a GPU and 256 on a CPU, where they fit the cache.
    """
    if len(samples) == 0:
        raise DataError("no samples to evaluate the model on, expected at least one")
    parameter = next(model.parameters(), None)
    device = samples.x.device if parameter is None else parameter.device
    batch_size = batch_size or (256 if device.type == "cpu" else 1024)
    with evaluating(model), torch.inference_mode():
        outputs = [
            _answer(model, samples.x[start : start + batch_size].to(device))
            for start in range(0, len(samples), batch_size)
        ]
    # Joined outside of inference mode, so that the logits are tensors like any other.
    return Evidence(torch.cat(outputs), samples.y.cpu())


def _answer(model: nn.Module, batch: Tensor) -> Tensor:
    output = model(batch)
    if not isinstance(output, Tensor):
        raise StateError(f"the model returned a {type(output).__name__}, expected logits")
    return output.to(device="cpu", dtype=torch.float32)


def accuracy(logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Score:
    """Return the share of samples (those in `mask`) whose largest logit is the label's."""
    _check_sizes(logits, labels)
    right = logits.argmax(dim=1) == labels
    if mask is not None:
        right = right[mask.to(right.device)]
    return share(int(right.sum()), len(right))


def _check_sizes(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 2 or len(logits) != len(labels):
        raise StateError(
            f"outputs of shape {tuple(logits.shape)} for {len(labels)} samples, expected one row "
            "of logits each"
        )
    low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if low < 0 or high >= logits.shape[1]:
        raise StateError(
            f"labels run from {low} to {high}, but the model has {logits.shape[1]} outputs"
        )
