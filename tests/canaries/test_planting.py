from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import torch

from secede.canaries import CanaryOptions, plant
from secede.data import Samples

PROGRAM = """
import hashlib, torch
from secede.canaries import CanaryOptions, plant
from secede.data import Samples
draw = torch.Generator().manual_seed(0)
images = Samples(torch.rand(600, 1, 12, 12, generator=draw), torch.arange(600) % 10)
samples = plant(images, bytes(range(32)), CanaryOptions(kind={kind!r}), classes=10).samples
print(hashlib.sha256(samples.x.numpy().tobytes() + samples.y.numpy().tobytes()).hexdigest())
"""


def digest(samples: Samples) -> str:
    return hashlib.sha256(samples.x.numpy().tobytes() + samples.y.numpy().tobytes()).hexdigest()


def test_another_process_plants_the_same(images: Samples, salt: bytes) -> None:
    planted = plant(images, salt, CanaryOptions(), classes=10)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(kind="made-up")], capture_output=True, check=True
    )
    assert digest(planted.samples) == done.stdout.decode().strip()
    assert digest(plant(images, bytes(32), classes=10).samples) != digest(planted.samples)


def test_all_own_samples_stay_and_canaries_lie_among_them(images: Samples, salt: bytes) -> None:
    planted = plant(images, salt, CanaryOptions(count=7, copies=1), classes=10)
    own = {row.numpy().tobytes() for row in images.x}
    strange = [row.numpy().tobytes() not in own for row in planted.samples.x]
    assert len(planted.samples) == 607
    assert sum(strange) == 7
    assert strange.index(True) < 300
    assert not all(strange[-7:])


@pytest.mark.parametrize(("kind", "fewer"), [("mislabelled", 7), ("withheld-twins", 14)])
def test_own_samples_are_replaced(images: Samples, salt: bytes, kind: str, fewer: int) -> None:
    options = CanaryOptions(count=7, copies=1, kind=kind, noise=0)  # type: ignore[arg-type]
    planted = plant(images, salt, options, classes=10)
    assert planted.canaries is not None
    assert len(planted.samples) == 600 - fewer + 7
    assert len(torch.unique(planted.samples.x, dim=0)) == 600 - fewer + 7


def test_a_client_that_is_too_small_keeps_its_samples(images: Samples, salt: bytes) -> None:
    small = images.take(torch.arange(100))
    planted = plant(small, salt)
    assert planted.samples is small
    assert planted.canaries is None
    assert "100 samples" in planted.reason
