"""One client's local training: mini-batch SGD, as in section 3 of Halimi et al. 2022.

Every executor is compared with this plain loop, in results and in speed. Published results use
float32. On request, TF32 rounds the factors of products on a GPU to 10 bits, and bf16 runs the
forward and backward pass with 7 bits; parameters, momentum and means stay float32.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from secede.data import Samples
from secede.errors import ConfigError, DataError, StateError
from secede.federation.engine import Batch, LocalTraining, Loss
from secede.text import one_line

Precision = Literal["float32", "tf32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_MISMATCHES = (RuntimeError, LookupError, TypeError, ValueError)


def orders(count: int, epochs: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return an order of `count` samples for each epoch, drawn on the CPU for every device."""
    return tuple(torch.randperm(count, generator=generator) for _ in range(epochs))


def batches(samples: Samples, batch_size: int, order: Tensor) -> Iterator[Batch]:
    """Yield one epoch of mini-batches in the given order; the last one may be smaller."""
    for chosen in order.to(samples.y.device).split(batch_size):
        yield samples.x[chosen], samples.y[chosen]


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters; raise if there are none."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise StateError("the model has no trainable parameters")
    return parameters


def train(
    model: nn.Module,
    samples: Samples,
    training: LocalTraining,
    *,
    orders: Iterable[Tensor],
    loss: Loss = nn.functional.cross_entropy,
    precision: Precision = "float32",
) -> None:
    """Train `model` in place on `samples`, one epoch per order, with a new optimiser."""
    model.train()
    optimiser = torch.optim.SGD(
        trainable(model), lr=training.learning_rate, momentum=training.momentum
    )
    for order in orders:
        for inputs, labels in batches(samples, training.batch_size, order):
            optimiser.zero_grad(set_to_none=True)
            batch_loss(model, inputs, labels, loss=loss, precision=precision).backward()
            optimiser.step()


def batch_loss(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, loss: Loss, precision: Precision
) -> Tensor:
    """Return the loss of one batch."""
    try:
        return loss(forward(model, inputs, precision), labels)
    except ValueError as error:
        if len(inputs) > 1 or "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            "a client's last batch has one sample, but BatchNorm needs two or more: "
            "change training.batch_size or the clients' sizes"
        ) from error


def check_precision(precision: str, device: torch.device | str) -> None:
    """Raise unless `precision` is known and `device` supports it."""
    if precision not in PRECISIONS:
        raise ConfigError(f"precision is {precision!r}, expected one of {', '.join(PRECISIONS)}")
    if precision == "tf32" and torch.device(device).type != "cuda":
        raise ConfigError("precision is 'tf32', which needs a GPU: use 'float32' or 'bf16'")


def forward(model: Callable[[Tensor], Tensor], inputs: Tensor, precision: Precision) -> Tensor:
    """Return the model's outputs; with bf16, compute in it and return float32."""
    if precision != "bf16":
        return model(inputs)
    # The cache would reuse rounded weights across the steps of a CUDA graph.
    with torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False):
        outputs = model(inputs)
    return outputs.float()


@contextmanager
def product_precision(precision: Precision) -> Iterator[None]:
    """Run the block with TF32 products on or off, then restore the setting.

    The setting belongs to the process: threads that want the same value share it, others wait.
    """
    if not torch.cuda.is_available():
        yield
        return
    _tf32.acquire(precision == "tf32")
    try:
        yield
    finally:
        _tf32.release()


class _SharedTf32Setting:
    """TF32 on or off for the process; holders of the same value share it."""

    def __init__(self) -> None:
        self._released = threading.Condition()
        self._holders, self._on, self._before = 0, False, (False, False)

    def acquire(self, on: bool) -> None:
        with self._released:
            self._released.wait_for(lambda: not self._holders or self._on == on)
            if not self._holders:
                matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
                self._before = matmul.allow_tf32, cudnn.allow_tf32
                matmul.allow_tf32 = cudnn.allow_tf32 = on
            self._holders, self._on = self._holders + 1, on

    def release(self) -> None:
        with self._released:
            self._holders -= 1
            if not self._holders:
                matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
                matmul.allow_tf32, cudnn.allow_tf32 = self._before
                self._released.notify_all()


_tf32 = _SharedTf32Setting()


@contextmanager
def explain_mismatch(model: nn.Module, loss: Loss, batches: list[Batch]) -> Iterator[None]:
    """Run the block; raise DataError if it fails because of one of `batches`.

    It looks for the reason after the failure: a check beforehand would change later draws.
    """
    try:
        yield
    except _MISMATCHES as error:
        if not isinstance(error, torch.OutOfMemoryError):
            for batch in batches:
                _check_fit(model, loss, batch, error)
        raise


def _check_fit(model: nn.Module, loss: Loss, batch: Batch, error: Exception) -> None:
    x, y = batch
    copied = copy.deepcopy(model).eval()
    try:
        with torch.no_grad():
            outputs = copied(x.to(_device(copied)))
    except _MISMATCHES as mismatch:
        raise DataError(
            f"the model cannot take inputs of {_describe(x)}: {_one_line(mismatch)}"
        ) from error
    try:
        loss(outputs, y.to(_device(copied)))
    except _MISMATCHES as mismatch:
        raise DataError(
            f"the loss cannot take labels of {_describe(y)} for outputs of {_describe(outputs)}, "
            f"expected classes as whole numbers: {_one_line(mismatch)}"
        ) from error


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _describe(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"type {type(value).__name__}"
    return f"shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"


def _one_line(error: Exception) -> str:
    return one_line(error)[:160] or type(error).__name__
