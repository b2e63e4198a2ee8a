"""Executors: how the clients of a round are computed, on CPU cores or on a GPU.

This module does not import torch, so names can be listed without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from secede.errors import ConfigError, did_you_mean

AUTO = "auto"
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "loop": "one client after another in a plain loop; the others are tested against it",
        "cpu": "one client per core, channels-last, fused optimiser",
        "fused": "GPU: kernels for convolutions with pooling, all clients in one launch per layer",
        "graphs": "GPU: each client's steps as CUDA graphs on a stream of its own",
        "stacked": "clients stacked into one model by vmap; best for many clients without "
        "convolutions",
    }
)


def check_name(name: str) -> None:
    """Raise unless `name` is an executor or 'auto'."""
    if name != AUTO and name not in NAMES:
        raise ConfigError(
            f"executor: unknown name {name!r}; {did_you_mean(name, NAMES)}"
            f"expected auto or one of {', '.join(NAMES)}"
        )
