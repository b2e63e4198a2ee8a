from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from secede.errors import RecordError
from secede.experiments.records import Checkpoint, SeedFolder, read_json, run_folder, write_json
from secede.federation.engine import Cost


def folder(path: Path) -> SeedFolder:
    seed = SeedFolder(path)
    for number in range(3):
        seed.append_row({"arm": "fedavg", "round": number})
    cost = Cost(rounds=1, upload_bytes=7, seconds=0.5)
    seed.save_checkpoint("fedavg", Checkpoint(1, {"w": torch.ones(2)}, cost))
    return seed


def test_a_checkpoint_comes_back_with_round_state_and_cost(tmp_path: Path) -> None:
    found = folder(tmp_path).checkpoint("fedavg")
    assert found is not None
    assert (found.round, found.cost.upload_bytes, found.cost.seconds) == (1, 7, 0.5)
    assert found.state["w"].tolist() == [1.0, 1.0]
    assert folder(tmp_path).checkpoint("retrain") is None


def test_rows_beyond_the_checkpoint_and_a_torn_line_are_dropped(tmp_path: Path) -> None:
    seed = folder(tmp_path)
    with (tmp_path / "curves.jsonl").open("a") as file:
        file.write('{"arm": "retrain", "round": 0}\n{"arm": "fed')
    seed.drop_rows_beyond_checkpoints()
    assert seed.rows() == [{"arm": "fedavg", "round": 0}, {"arm": "fedavg", "round": 1}]


def test_damage_in_the_middle_is_named_with_its_line(tmp_path: Path) -> None:
    seed = folder(tmp_path)
    (tmp_path / "curves.jsonl").write_text('{"arm": "fedavg", "round": 0}\n{"ar\n{}\n')
    with pytest.raises(RecordError, match=r"curves\.jsonl, line 2: damaged"):
        seed.rows()


def test_a_checkpoint_without_its_metadata_is_named(tmp_path: Path) -> None:
    seed = folder(tmp_path)
    seed.save_state("retrain", {"w": torch.ones(1)}, {})
    with pytest.raises(RecordError, match=r"retrain\.safetensors: damaged checkpoint"):
        seed.checkpoint("retrain")


def test_json_is_read_back_and_anything_else_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    assert read_json(tmp_path / "a.json") == {"x": 1}
    (tmp_path / "b.json").write_text(json.dumps([1]))
    with pytest.raises(RecordError, match="expected a JSON object, got list"):
        read_json(tmp_path / "b.json")


def test_run_folders_are_plain_names_below_the_runs() -> None:
    found = run_folder(Path("runs"), "paper/mnist ../x", "ab" * 32)
    assert found == Path("runs/paper-mnist-x-abababab")


def test_leftovers_of_a_killed_write_are_cleared(tmp_path: Path) -> None:
    (tmp_path / "states").mkdir()
    leftover = tmp_path / "states" / ".fedavg.safetensors.x1.part"
    leftover.write_bytes(b"half")
    with SeedFolder(tmp_path).locked():
        assert not leftover.exists()


def test_a_flipped_bit_in_a_checkpoint_is_found(tmp_path: Path) -> None:
    seed = folder(tmp_path)
    path = tmp_path / "states" / "fedavg.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RecordError, match="not those that were written"):
        seed.checkpoint("fedavg")


def test_a_seed_begun_elsewhere_is_not_continued(tmp_path: Path) -> None:
    seed = folder(tmp_path)
    seed.write_environment({"torch": "1", "threads": 2})
    seed.write_environment({"torch": "1", "threads": 2})
    with pytest.raises(RecordError, match="another environment: threads 2 then, 4 now"):
        seed.write_environment({"torch": "1", "threads": 4})


def test_what_changes_no_result_may_change_in_the_middle(tmp_path: Path) -> None:
    seed = folder(tmp_path)
    seed.write_environment({"executor": "cpu", "executor_note": "", "lanes": 1})
    seed.write_environment({"executor": "cpu", "executor_note": "not graphs: no GPU", "lanes": 2})
    assert read_json(tmp_path / "environment.json")["lanes"] == 2
    with pytest.raises(RecordError, match="executor cpu then, loop now"):
        seed.write_environment({"executor": "loop", "executor_note": "", "lanes": 1})
