"""How each kernel is cut up and how it multiplies, by precision; timed on an H200.

float32 splits every factor into three bf16 numbers and sums six products of them, which keeps
float32's digits and uses the tensor cores; TF32 uses two numbers and three products where that is
faster than TF32 itself, and keeps more digits than TF32 would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from secede.federation.training import Precision


@dataclass(frozen=True)
class Config:
    """Rows and columns of a block, parts of the batch, window positions served in one turn."""

    block: int
    columns: int = 0
    splits: int = 1
    group: int = 4
    warps: int = 4
    stages: int = 2
    product: str = "ieee"  # tl.dot's input precision; bf16 factors need none


# In the weight gradients `block` counts pooled positions per turn of the loop.
CONFIGS: Mapping[Precision, Mapping[str, Config]] = MappingProxyType(
    {
        "bf16": {
            "first_forward": Config(block=64, stages=1),
            "forward": Config(block=64, stages=3),
            "input_gradient": Config(block=128, warps=8),
            "first_weight_gradient": Config(block=32, columns=32, splits=32, group=1, stages=1),
            "weight_gradient": Config(block=64, columns=128, splits=8, group=2),
            "dense_update": Config(block=64, columns=128),
        },
        "tf32": {
            "first_forward": Config(block=128, stages=1, product="tf32"),
            "forward": Config(block=128, warps=8, stages=3, product="tf32"),
            "input_gradient": Config(block=128, group=1, warps=8, stages=3, product="tf32"),
            "first_weight_gradient": Config(
                block=32, columns=32, splits=32, group=1, stages=1, product="tf32"
            ),
            "weight_gradient": Config(block=64, columns=128, splits=8, group=1, product="bf16x3"),
            "dense_update": Config(block=64, columns=64, product="bf16x3"),
        },
        "float32": {
            "first_forward": Config(block=64, stages=1, product="bf16x6"),
            "forward": Config(block=64, stages=3, product="bf16x6"),
            "input_gradient": Config(block=128, group=1, warps=8, product="bf16x6"),
            "first_weight_gradient": Config(
                block=64, columns=32, splits=64, group=1, warps=2, stages=1, product="bf16x6"
            ),
            "weight_gradient": Config(
                block=16, columns=128, splits=8, group=1, stages=4, product="bf16x6"
            ),
            "dense_update": Config(block=64, columns=64, product="bf16x6"),
        },
    }
)
