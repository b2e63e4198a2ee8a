from __future__ import annotations

from pathlib import Path

import pytest
import torch

from secede import state as states
from secede.erasure.defences.fingerprints import ReplayDetector
from secede.errors import StorageError
from secede.federation.engine import OwnState, Update
from secede.state import State


def drawn(seed: int, around: State | None = None, length: float = 1.0) -> State:
    draw = torch.Generator().manual_seed(seed)
    change = {"w": torch.randn(2_000, generator=draw) * length / 2_000**0.5}
    return change if around is None else states.shifted(around, change)


OLD, START = drawn(0), drawn(1)


def updates(*sent: states.State) -> dict[int, Update]:
    return {client: Update(client, state, 1) for client, state in enumerate(sent, start=1)}


def returning(folder: Path, *, kept: bool) -> ReplayDetector:
    """Return one that knows OLD: by its sketch, or as the update of the client that leaves now."""
    now = ReplayDetector(folder, {"w"}, OwnState(OLD, 0.5), ())
    if not kept:
        return now
    now.save()
    return ReplayDetector(folder, {"w"}, None, ())


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_copy_and_a_near_copy_are_known_again(tmp_path: Path, kept: bool, noise: float) -> None:
    sent = updates(drawn(2, START, 0.3), drawn(3, OLD, noise), drawn(4, START, 0.3))
    assert returning(tmp_path, kept=kept).replays(sent, START) == {2}


@pytest.mark.parametrize("kept", [False, True])
def test_where_training_ends_at_one_point_nobody_is_taken_for_another(
    tmp_path: Path, kept: bool
) -> None:
    sent = updates(*(drawn(client, OLD, 0.01) for client in (1, 2, 3)))
    assert returning(tmp_path, kept=kept).replays(sent, START) == set()
    assert returning(tmp_path, kept=kept).replays({1: sent[1]}, START) == set()


def test_a_digest_alone_knows_copies(tmp_path: Path) -> None:
    ReplayDetector(tmp_path, {"w"}, None, (states.digest(OLD),)).save()
    later = ReplayDetector(tmp_path, {"w"}, None, ())
    assert later.replays(updates(OLD, drawn(5, OLD, 1e-6)), START) == {1}


def test_a_damaged_sketch_is_nobody_s_fault(tmp_path: Path) -> None:
    known = returning(tmp_path, kept=True)
    (tmp_path / f"{states.digest(OLD)}.json").write_bytes(b"{")
    with pytest.raises(StorageError, match="damaged"):
        known.replays(updates(drawn(2), drawn(3)), START)
