from __future__ import annotations

import torch

from benchmarks import memory


def test_the_peak_is_that_of_the_work_since_the_restart() -> None:
    large, small = 2**28, 2**24
    torch.ones(large, dtype=torch.uint8)
    memory.restart("cpu")
    before = memory.peak_bytes("cpu")
    torch.ones(small, dtype=torch.uint8)
    assert small // 2 < memory.peak_bytes("cpu") - before < large // 2
