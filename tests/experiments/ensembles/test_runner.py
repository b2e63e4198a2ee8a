"""`experiments/ensembles/runner.py`: what is trained once, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from harness import audits
from secede import files
from secede.errors import ConfigError, RecordError
from secede.experiments.ensembles.members import PLAIN
from secede.experiments.ensembles.runner import Audit


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Audit]:
    folder = tmp_path_factory.mktemp("whole")
    audits.write(folder)
    return folder, audits.run(folder, 4, lanes=2)


@pytest.fixture
def copied(whole: tuple[Path, Audit], tmp_path: Path) -> Path:
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    audits.write(tmp_path)
    return tmp_path


def outcome(audit: Audit) -> list[object]:
    return [note["models"] for note in audit.notes]


def test_an_audit_that_was_interrupted_goes_on_with_what_is_missing(
    whole: tuple[Path, Audit], tmp_path: Path
) -> None:
    audits.write(tmp_path)
    first, second = audits.Events(stop_at=2), audits.Events()
    with pytest.raises(KeyboardInterrupt):
        audits.run(tmp_path, 4, first)
    found = audits.run(tmp_path, 4, second)
    assert (first.begun, second.begun) == ([0, 1], [2, 3])
    assert second.expected == (4, 2, 1)
    # The same bits as in one go, whatever the lanes.
    assert outcome(found) == outcome(whole[1])
    for kind, sets in found.ensembles[PLAIN].margins.items():
        for name, margins in sets.items():
            assert np.array_equal(margins, whole[1].ensembles[PLAIN].margins[kind][name])


def test_a_federation_killed_before_its_last_write_is_done_again(
    copied: Path, whole: tuple[Path, Audit]
) -> None:
    members = next((copied / "runs").iterdir()) / "members"
    (members / "001.json").unlink()
    (members / "001.safetensors").write_bytes(b"half")
    (members / ".002.json.1234.part").write_text("{")
    events = audits.Events()
    found = audits.run(copied, 4, events)
    assert events.begun == [1]
    assert outcome(found) == outcome(whole[1])
    assert not list(members.glob(".*"))


def test_scores_can_be_made_again_and_fewer_or_more_models_reuse_what_is_there(
    copied: Path, whole: tuple[Path, Audit]
) -> None:
    events = audits.Events()
    assert outcome(audits.run(copied, 4, events)) == outcome(whole[1])
    assert events.begun == []
    more = audits.run(copied, 5, events)
    assert events.begun == [4]
    assert events.announced == len(events.rounds) == 3 * 2 + 2
    assert outcome(more)[:4] == outcome(whole[1])
    assert more.ensembles[PLAIN].models == 5


def test_models_are_not_kept(whole: tuple[Path, Audit]) -> None:
    (folder,) = (whole[0] / "runs").iterdir()
    kept = sorted(path.name for path in folder.rglob("*") if path.is_file())
    numbers = [f"{number:03}.{end}" for number in range(4) for end in ("json", "safetensors")]
    assert kept == sorted([".lock", "audit.json", "environment.json", *numbers])
    assert json.loads((folder / "audit.json").read_text())["dealt"] == 100
    assert folder.name.startswith("audit-tiny-")


def test_other_versions_add_no_models(copied: Path) -> None:
    (folder,) = (copied / "runs").iterdir()
    path = folder / "environment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "torch": "1.0"}))
    audits.run(copied, 4)
    with pytest.raises(RecordError, match=r"begun in another environment: torch 1\.0 then"):
        audits.run(copied, 5)


def test_an_audit_that_another_process_writes_is_left_alone(copied: Path) -> None:
    (folder,) = (copied / "runs").iterdir()
    with files.lock(folder / ".lock", timeout=0), pytest.raises(RecordError, match="being written"):
        audits.run(copied, 5)


def test_other_options_are_another_audit(copied: Path) -> None:
    audits.run(copied, 4, quantised=False)
    assert len(list((copied / "runs").iterdir())) == 2


def test_every_lane_has_one_thread_and_the_process_its_own_again(copied: Path) -> None:
    (folder,) = (copied / "runs").iterdir()
    assert json.loads((folder / "environment.json").read_text())["threads"] == 1
    before = torch.get_num_threads()
    audits.run(copied, 5)
    assert torch.get_num_threads() == before


def test_too_few_models_tell_nothing(tmp_path: Path) -> None:
    audits.write(tmp_path)
    with pytest.raises(ConfigError, match="3 models of each kind, expected 4 or more"):
        audits.run(tmp_path, 3)
