from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

import pytest
import torch

from secede.flower.client import counted_predictions
from secede.flower.client.counted_predictions import CountedPredictions


def model(number: int) -> str:
    return hashlib.sha256(bytes([number])).hexdigest()


def bits(count: int = 21, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 0.5


def test_what_was_counted_is_known_again(tmp_path: Path) -> None:
    counted = CountedPredictions(tmp_path, "samples")
    counted.put(model(1), bits())
    found = counted.get(model(1), 21)
    assert found is not None
    assert torch.equal(found, bits())
    assert counted.get(model(2), 21) is None
    assert counted.get(model(1), 400) is None
    assert CountedPredictions(tmp_path, "others").get(model(1), 21) is None


def test_a_servers_word_is_no_path(tmp_path: Path) -> None:
    counted = CountedPredictions(tmp_path / "own", "samples")
    for word in ("../../etc/passwd", "", None, 7, ["x"], "A" * 64):
        assert counted.get(word, 21) is None


def test_what_is_compared_with_is_not_forgotten(tmp_path: Path) -> None:
    counted = CountedPredictions(tmp_path, "samples")
    counted.put(model(0), bits())
    for number in range(1, 12):  # as many rounds of an erasure
        assert counted.get(model(0), 21) is not None
        counted.put(model(number), bits(seed=number))
    assert len([*tmp_path.iterdir()]) <= 4


def test_the_secret_is_the_clients_own_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted_predictions, "secrets", secrets)  # those of tests repeat
    first = counted_predictions.own_secret(tmp_path / "a")
    assert counted_predictions.own_secret(tmp_path / "a") == first
    assert counted_predictions.own_secret(tmp_path / "b") != first
    assert (tmp_path / "a" / "own.secret").stat().st_mode & 0o77 == 0


def test_the_last_models_stay_for_their_owner_alone(tmp_path: Path) -> None:
    counted = CountedPredictions(tmp_path, "samples")
    for number in range(6):
        counted.put(model(number), bits(seed=number))
        (newest,) = (p for p in tmp_path.iterdir() if p.stat().st_mtime_ns > 10**10)
        os.utime(newest, ns=(number, number))
    assert [counted.get(model(number), 21) is not None for number in range(6)] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert {path.stat().st_mode & 0o77 for path in tmp_path.iterdir()} == {0}
    counted_predictions.forget(tmp_path)
    assert list(tmp_path.iterdir()) == []
