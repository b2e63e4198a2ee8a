"""How many digits the arithmetic of training keeps: float32, or less where that is asked for.

TF32 rounds the factors of products on a GPU to 10 bits, bf16 runs the forward and backward pass
on 7; parameters, momentum and means stay float32. Results are published in float32.
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
    """Raise unless `device` can compute in `precision`."""
    if precision not in NAMES:
        raise ConfigError(f"precision is {precision!r}, expected one of {', '.join(NAMES)}")
    if precision == "tf32" and torch.device(device).type != "cuda":
        raise ConfigError("precision is 'tf32', but only GPUs have it: use 'float32' or 'bf16'")


def forward(model: Callable[[Tensor], Tensor], inputs: Tensor, precision: Precision) -> Tensor:
    """Return the model's outputs as float32, or as it gives them where nothing is rounded."""
    if precision != "bf16":
        return model(inputs)
    # The cache would keep rounded weights across the steps of a CUDA graph.
    with torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False):
        outputs = model(inputs)
    return outputs.float()


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Run the block with TF32 products on or off, and set the switch back after it.

    The switch is the whole process's: threads that want it the same way share it, others wait.
    """
    if not torch.cuda.is_available():
        yield
        return
    _tf32.take(precision == "tf32")
    try:
        yield
    finally:
        _tf32.leave()


class _Switch:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users, self._on, self._before = 0, False, (False, False)

    def take(self, on: bool) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._users or self._on == on)
            if not self._users:
                matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
                self._before = matmul.allow_tf32, cudnn.allow_tf32
                matmul.allow_tf32 = cudnn.allow_tf32 = on
            self._users, self._on = self._users + 1, on

    def leave(self) -> None:
        with self._changed:
            self._users -= 1
            if not self._users:
                matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
                matmul.allow_tf32, cudnn.allow_tf32 = self._before
                self._changed.notify_all()


_tf32 = _Switch()
