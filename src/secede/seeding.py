"""Seeds: one root seed gives every random choice its own named generator.

A generator depends on the root seed and its name alone, never on what was drawn before it, so
a new metric cannot change a training run and a resumed run draws what it would have drawn.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *name: str | int) -> int:
    """Return the 63-bit seed that belongs to `name` under the root `seed`."""
    path = "/".join(str(part) for part in (seed, *name))
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *name: str | int) -> torch.Generator:
    """Return a fresh CPU generator for `name` under the root `seed`."""
    return torch.Generator().manual_seed(derive(seed, *name))


# torch's global generators belong to the whole process: one thread at a time may seed them.
_global_lock = threading.RLock()


@contextmanager
def seeded(seed: int, *name: str | int) -> Iterator[None]:
    """Run the block with torch's global generators seeded for `name`, then restore them.

    Other threads wait at their own `seeded` blocks until this one ends.
    """
    with torch_seeded(derive(seed, *name)):
        yield


@contextmanager
def torch_seeded(derived: int) -> Iterator[None]:
    """Do what `seeded` does, for a seed that `derive` returned."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with _global_lock, torch.random.fork_rng(devices=devices):
        torch.manual_seed(derived)
        yield
