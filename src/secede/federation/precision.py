"""How many digits the arithmetic of training keeps: float32, or less where that is asked for.

TF32 rounds the factors of products on a GPU to 10 bits, bf16 runs the forward and backward pass
on 7; parameters, momentum and means stay float32. Results are published in float32.
"""

from __future__ import annotations

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
    """Run the block with TF32 products on or off; a switch of the whole process."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
