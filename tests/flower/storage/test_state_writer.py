from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from secede import files
from secede import state as states
from secede.errors import StorageError
from secede.flower.storage import state_writer


def state() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        "w": torch.rand((3, 4), generator=draw),
        "n": torch.tensor(7),
        "half": torch.rand(5, generator=draw).half(),
        "turned": torch.rand((2, 3), generator=draw).t(),
        "empty": torch.zeros(0),
    }


def test_a_file_is_the_one_that_the_slow_way_writes(tmp_path: Path) -> None:
    digest = state_writer.save(state(), tmp_path / "a")
    assert digest == states.digest(state())
    (path,) = (tmp_path / "a").iterdir()
    assert path.name == f"{digest}.safetensors"
    states.save(state(), tmp_path / "slow")
    assert path.read_bytes() == (tmp_path / "slow").read_bytes()


def test_entries_that_share_memory_are_written_apart(tmp_path: Path) -> None:
    tied = torch.rand(6)
    both = {"a": tied, "b": tied, "part": tied[2:4]}
    loaded, _ = states.load(tmp_path / f"{state_writer.save(both, tmp_path)}.safetensors")
    assert states.digest(loaded) == states.digest(both)


def test_a_checksum_tells_names_kinds_shapes_and_values_apart(tmp_path: Path) -> None:
    found = state_writer.write_with_checksum(state(), tmp_path / "a")
    assert found == state_writer.checksum(states.load(tmp_path / "a")[0])
    assert found == state_writer.checksum(dict(reversed(state().items())))
    others = [
        {**state(), "w": state()["w"].nextafter(torch.tensor(2.0))},
        {**state(), "w": state()["w"].reshape(4, 3)},
        {**state(), "w": state()["w"].view(torch.int32)},
        {("v" if name == "w" else name): value for name, value in state().items()},
        {name: value for name, value in state().items() if name != "empty"},
    ]
    assert len({found, *map(state_writer.checksum, others)}) == 6


def test_what_cannot_be_written_is_told_and_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match="cannot write in"):
        state_writer.save(state(), tmp_path / "file" / "below")
    digest = states.digest(state())
    (tmp_path / f"{digest}.safetensors").mkdir()  # cannot be replaced
    with pytest.raises(StorageError, match="cannot write in"):
        state_writer.save(state(), tmp_path)
    assert not list(tmp_path.glob(files.PARTS))


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        state_writer.save(state(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_private_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    digest = state_writer.save(state(), tmp_path, mode=0o600)
    assert stat.S_IMODE((tmp_path / f"{digest}.safetensors").stat().st_mode) == 0o600
