from __future__ import annotations

import pytest
import torch

from secede.canaries.coins import canary_secret
from secede.canaries.own_samples import mislabelled, withheld_twins
from secede.canaries.pool import Pool
from secede.errors import ConfigError

SECRET = canary_secret(bytes(32))
X = torch.arange(60.0).reshape(60, 1)
POOL = Pool(X, torch.arange(60) % 5, tuple(range(100, 160)))


def test_a_mislabelled_sample_has_every_label_but_its_own() -> None:
    canaries, replaced = mislabelled(POOL, SECRET, 8, classes=5)
    assert len(canaries) == len(replaced) == 8
    for canary in canaries:
        own = int(canary.inputs[0, 0])
        assert 100 + own in replaced
        assert sorted([*canary.targets.tolist(), own % 5]) == list(range(5))


def test_twins_have_one_label_and_both_leave_training() -> None:
    canaries, replaced = withheld_twins(POOL, SECRET, 8)
    assert len(replaced) == 16
    for canary in canaries:
        one, other = (int(value) for value in canary.inputs[:, 0])
        assert one % 5 == other % 5 == int(canary.drawn_target)
        assert {100 + one, 100 + other} <= replaced
        assert one != other


def test_a_client_without_enough_samples_or_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="60 samples, too few for 61"):
        mislabelled(POOL, SECRET, 61)
    with pytest.raises(ConfigError, match="30 pairs of a class, too few for 31"):
        withheld_twins(POOL, SECRET, 31)
    with pytest.raises(ConfigError, match="three classes"):
        mislabelled(POOL, SECRET, 3, classes=2)
    numbers = Pool(X, torch.rand(60), tuple(range(60)))
    for draw in (mislabelled, withheld_twins):
        with pytest.raises(ConfigError, match="only samples with classes"):
            draw(numbers, SECRET, 3)
