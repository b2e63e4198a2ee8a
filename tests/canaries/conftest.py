"""What the tests of canaries share: small images, and a salt."""

from __future__ import annotations

import pytest
import torch

from secede.data import Samples

SALT = bytes(range(32))


@pytest.fixture
def salt() -> bytes:
    return SALT


@pytest.fixture
def images() -> Samples:
    draw = torch.Generator().manual_seed(0)
    return Samples(torch.rand(600, 1, 12, 12, generator=draw), torch.arange(600) % 10)
