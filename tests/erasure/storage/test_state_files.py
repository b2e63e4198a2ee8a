from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secede import state as states
from secede.erasure.storage.state_files import StateFiles
from secede.errors import StateError

STATE = {"weight": torch.arange(12.0).view(3, 4), "count": torch.tensor([3])}
DIGEST = states.digest(STATE)
MEMORY = {"back": torch.ones(2)}
CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8)


def test_a_state_comes_back_with_what_its_method_remembers(tmp_path: Path) -> None:
    vault = StateFiles(tmp_path / "work")
    name = vault.put(STATE, MEMORY, digest=DIGEST)
    state, memory = vault.get(name)
    assert states.digest(state) == states.digest(STATE)
    assert states.digest(memory) == states.digest(MEMORY)
    assert vault.put(STATE, MEMORY, digest=DIGEST) == name
    assert name != vault.put(STATE, digest=DIGEST) == DIGEST


def test_what_is_destroyed_is_gone_with_everything_half_written(tmp_path: Path) -> None:
    vault = StateFiles(tmp_path / "work")
    name, other = vault.put(STATE, digest=DIGEST), vault.put(STATE, MEMORY, digest=DIGEST)
    (tmp_path / "work" / ".x.part").write_bytes(b"half")
    vault.drop(name)
    vault.drop(name)
    with pytest.raises(StateError, match="no such file"):
        vault.get(name)
    vault.get(other)
    vault.destroy()
    vault.destroy()
    assert not (tmp_path / "work").exists()


def test_no_other_file_can_be_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="names no state file"):
        StateFiles(tmp_path).get("../../secret")


def spoilt_is_refused(folder: Path, changes: list[tuple[int, int]]) -> None:
    vault = StateFiles(folder)
    name = vault.put(STATE, MEMORY, digest=DIGEST)
    (path,) = folder.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    whole = bytes(content)
    for place, value in changes:
        content[place % len(content)] = value
    path.write_bytes(content)
    try:
        state, memory = vault.get(name)
    except StateError:
        return
    # Bytes that say the same in another way, such as spaces in the header.
    assert bytes(content) == whole or states.digest(state) == states.digest(STATE)
    assert states.digest(memory) == states.digest(MEMORY)


@given(CHANGES)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_spoilt_files_are_refused(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    spoilt_is_refused(tmp_path / "work", changes)


@pytest.mark.slow
@given(CHANGES)
@settings(
    max_examples=10_000,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_ten_thousand_spoilt_files_are_refused(
    tmp_path: Path, changes: list[tuple[int, int]]
) -> None:
    spoilt_is_refused(tmp_path / "work", changes)


def test_every_flipped_bit_of_the_values_is_found(tmp_path: Path) -> None:
    vault = StateFiles(tmp_path / "work")
    name = vault.put(STATE, digest=DIGEST)
    (path,) = (tmp_path / "work").glob("*.safetensors")
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for place in range(start, len(whole)):
        for bit in range(8):
            spoilt = bytearray(whole)
            spoilt[place] ^= 1 << bit
            path.write_bytes(spoilt)
            with pytest.raises(StateError, match="not those that were written"):
                vault.get(name)
