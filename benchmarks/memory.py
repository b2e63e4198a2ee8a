"""The most memory that a piece of work took: torch's on a GPU, the whole process's on a CPU."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

import torch


def restart(device: str) -> None:
    """Measure the peak from here on; on a CPU this needs Linux and glibc."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed would still count
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: str) -> int:
    """Return the peak since `restart`."""
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
