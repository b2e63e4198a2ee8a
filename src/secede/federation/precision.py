"""The precision of training: float32, or TF32 and bf16 on request.

TF32 rounds the factors of products on a GPU to 10 bits; bf16 runs the forward and backward pass
with 7 bits. Parameters, momentum and means stay float32. Published results use float32.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from secede.errors import ConfigError

Precision = Literal["float32", "tf32", "bf16"]
NAMES: tuple[Precision, ...] = get_args(Precision)


def check(precision: str, device: torch.device | str) -> None:
    """Raise unless `precision` is known and `device` supports it."""
    if precision not in NAMES:
        raise ConfigError(f"precision is {precision!r}, expected one of {', '.join(NAMES)}")
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
