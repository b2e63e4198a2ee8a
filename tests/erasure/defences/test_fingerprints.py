from __future__ import annotations

from pathlib import Path

import pytest
import torch

from secede import state as states
from secede.erasure.defences.fingerprints import MAX_SUMS, Fingerprints
from secede.errors import RecordError
from secede.state import State


def drawn(seed: int, size: int = 20_000) -> State:
    draw = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(size, generator=draw), "b": torch.randn(3, 5, generator=draw)}


def test_distances_between_sketches_are_those_between_states(tmp_path: Path) -> None:
    fingerprints, state = Fingerprints(tmp_path), drawn(0)
    fingerprints.save("0" * 64, state, ["a", "b"])
    for seed, length in enumerate((1e-3, 0.1, 10.0), start=1):
        change = drawn(seed)
        other = states.shifted(state, change, length / states.norm(change))
        found = fingerprints.distance("0" * 64, other, ["a", "b"])
        assert found == pytest.approx(length, rel=0.4)
    assert fingerprints.distance("0" * 64, state, ["a", "b"]) == 0
    assert fingerprints.distance("1" * 64, state, ["a", "b"]) is None


def test_a_sketch_is_far_smaller_than_its_model(tmp_path: Path) -> None:
    fingerprints = Fingerprints(tmp_path)
    assert len(fingerprints.sketch(drawn(0), ["a", "b"])) == MAX_SUMS
    assert len(fingerprints.sketch(drawn(0, size=100), ["a", "b"])) == 115 // 16
    assert len(fingerprints.sketch(drawn(0), ["b"])) == 1


def test_only_what_training_moves_counts(tmp_path: Path) -> None:
    fingerprints, state = Fingerprints(tmp_path), drawn(0)
    fingerprints.save("0" * 64, state, ["a"])
    assert fingerprints.distance("0" * 64, {**state, "b": state["b"] + 9}, ["a"]) == 0


def test_homes_have_seeds_of_their_own_and_private_ones(tmp_path: Path) -> None:
    one, other = Fingerprints(tmp_path / "1"), Fingerprints(tmp_path / "2")
    assert not torch.equal(one.sketch(drawn(0), ["a"]), other.sketch(drawn(0), ["a"]))
    assert torch.equal(
        one.sketch(drawn(0), ["a"]), Fingerprints(tmp_path / "1").sketch(drawn(0), ["a"])
    )
    assert (tmp_path / "1" / "seed").stat().st_mode & 0o777 == 0o600


def test_damaged_files_are_found(tmp_path: Path) -> None:
    fingerprints = Fingerprints(tmp_path)
    fingerprints.save("0" * 64, drawn(0), ["a"])
    (tmp_path / f"{'0' * 64}.json").write_bytes(b"[1, nonsense")
    with pytest.raises(RecordError, match="damaged"):
        fingerprints.distance("0" * 64, drawn(0), ["a"])
    (tmp_path / "seed").write_bytes(b"short")
    with pytest.raises(RecordError, match="damaged"):
        Fingerprints(tmp_path).sketch(drawn(0), ["a"])
