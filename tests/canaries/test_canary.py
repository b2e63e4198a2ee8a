from __future__ import annotations

import hashlib
import hmac

import pytest
import torch

from secede.canaries import Canaries, CanaryOptions, canary_rows, plant
from secede.canaries.canary import toss
from secede.data import Samples


@pytest.fixture
def canaries(images: Samples, salt: bytes) -> Canaries:
    planted = plant(images, salt, CanaryOptions(count=7, copies=1), classes=10)
    assert planted.canaries is not None
    return planted.canaries


def test_the_same_salt_gives_the_same_canaries(canaries: Canaries) -> None:
    digest = hashlib.sha256(b"".join(canary_rows(canaries))).hexdigest()
    assert digest == "1e94a76a46b05719bc6c86a3286624708441eb9434955c012bd793d4a1307da7"


def test_the_secret_is_derived_and_not_the_salt(canaries: Canaries, salt: bytes) -> None:
    assert canaries.secret == hmac.digest(salt, b"canaries", "sha256")
    assert "secret" not in repr(canaries)


def test_the_opponent_is_never_the_one_drawn() -> None:
    pairs = {toss(bytes(32), index, 3) for index in range(200)}
    assert pairs == {(one, other) for one in range(3) for other in range(3) if one != other}


def test_fresh_copies_are_others_than_those_of_training(canaries: Canaries) -> None:
    trained, _ = canaries.training_copies(4)
    fresh = canaries.fresh_copies(0, 4)
    assert fresh.shape == (4, 1, 1, 12, 12)
    everything = torch.cat([trained[:4], fresh[:, 0]])
    assert len(torch.unique(everything, dim=0)) == 8
    assert torch.equal(fresh, canaries.fresh_copies(0, 4))


def test_copies_stay_in_the_range_of_the_data(canaries: Canaries, images: Samples) -> None:
    copies, _ = canaries.training_copies(20)
    assert copies.dtype == torch.float32
    assert float(images.x.min()) <= float(copies.min())
    assert float(copies.max()) <= float(images.x.max())


def test_each_part_of_a_canary_changes_its_row(canaries: Canaries) -> None:
    rows = list(canary_rows(canaries))
    canary = canaries.canaries[0]
    assert len(set(rows)) == len(rows) == 7
    swapped = type(canary)(canary.inputs, canary.targets, canary.opponent, canary.drawn)
    moved = type(canary)(canary.inputs + 0.5, canary.targets, canary.drawn, canary.opponent)
    for changed in (swapped, moved):
        other = Canaries(canaries.secret, canaries.options, (changed,), canaries.low, canaries.high)
        assert next(canary_rows(other)) != rows[0]
