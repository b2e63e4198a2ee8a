"""Updates that clients keep, for tests."""

from __future__ import annotations

from typing import Any

import torch

from harness.flower.small import Federation
from secede.flower.client.kept_updates import KeptUpdates

A, B = "a" * 32, "b" * 32  # homes


def keep(updates: KeptUpdates, value: float, **options: Any) -> str:
    state = {"w": torch.full((3,), float(value))}
    told = {"run": "1", "number": int(value), "samples": 4, **options}
    return str(updates.put(state, **told).digest)


def disk(federation: Federation, n: int) -> KeptUpdates:
    return KeptUpdates(federation.folder / f"disk-{n}" / f"partition-{n}")
