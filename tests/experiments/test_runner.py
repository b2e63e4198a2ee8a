import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import tiny
from harness.recorded_progress import RecordedProgress
from harness.runs import outcome, rows, run
from secede import state as states
from secede.data.samples import Dataset
from secede.errors import ConfigError, RecordError, StateError, StorageError
from secede.experiments import presets, runner, setup
from secede.experiments.config import Config, override
from secede.experiments.records import SeedFolder
from secede.experiments.setup import load_dataset
from secede.reports.records.load import read_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("finished"))[0]


def test_every_arm_has_its_curve(finished: Path) -> None:
    found = Counter(row["arm"] for row in rows(finished / "seed-0"))
    three = dict.fromkeys(("fine-tune", "reference", "projected-ascent"), 3)
    assert found == {"fedavg": 4, "retrain": 4, "retrain-again": 4, **three}


def test_costs_are_cumulative_and_count_the_leavers_own_exchange(finished: Path) -> None:
    by = {(row["arm"], row["round"]): row["cost"] for row in rows(finished / "seed-0")}
    wire = 4 * (64 * 16 + 16 + 16 * 3 + 3)
    assert by["fedavg", 3]["upload_bytes"] == 3 * 3 * wire
    assert by["retrain", 3]["upload_bytes"] == 3 * 2 * wire
    assert by["fine-tune", 0]["upload_bytes"] == 0
    assert by["projected-ascent", 0]["upload_bytes"] == wire
    assert by["projected-ascent", 2]["upload_bytes"] == wire + 2 * 2 * wire
    assert by["projected-ascent", 2]["download_bytes"] == wire + 2 * 2 * wire
    assert by["fedavg", 3]["gradient_samples"] == 3 * 150


def test_retraining_and_post_training_never_meet_the_leaver(tmp_path: Path) -> None:
    sizes = tiny.PAPER + 'clients.partition = "sizes"\nclients.sizes = [60, 10, 20]\n'
    found, _ = run(tmp_path, sizes)
    spent = {(r["arm"], r["round"]): r["cost"]["gradient_samples"] for r in rows(found / "seed-0")}
    assert spent["fedavg", 3] == 3 * 90
    assert spent["retrain", 3] == 3 * 30
    assert spent["fine-tune", 2] == spent["reference", 2] == 2 * 30
    assert spent["projected-ascent", 2] - spent["projected-ascent", 0] == 2 * 30


def test_retraining_again_has_the_same_data_and_other_randomness(finished: Path) -> None:
    by = {(row["arm"], row["round"]): row for row in rows(finished / "seed-0")}
    for round in range(4):
        first, again = by["retrain", round], by["retrain-again", round]
        assert first["digest"] != again["digest"]
        first["cost"].pop("seconds")
        again["cost"].pop("seconds")
        assert first["cost"] == again["cost"]


def test_without_retraining_again_every_other_model_is_the_same(
    finished: Path, tmp_path: Path
) -> None:
    text = tiny.PAPER.replace("rounds = 3,", "rounds = 3, retrain_again = false,")
    found, _ = run(tmp_path, text)
    assert found.name != finished.name
    here, there = (
        {(row["arm"], row["round"]): row["digest"] for row in rows(folder / "seed-0")}
        for folder in (found, finished)
    )
    assert here == {place: d for place, d in there.items() if place[0] != "retrain-again"}


def test_post_training_starts_where_the_method_says(finished: Path) -> None:
    digests = {(row["arm"], row["round"]): row["digest"] for row in rows(finished / "seed-0")}
    assert digests["fine-tune", 0] == digests["fedavg", 3]
    starts = {digests[arm, 0] for arm in ("fine-tune", "reference", "projected-ascent")}
    assert len(starts) == 3


def test_scores_after_retraining_are_compared_with_it_sample_by_sample(finished: Path) -> None:
    for row in rows(finished / "seed-0"):
        score = row["scores"]["clean_accuracy"]
        if row["arm"] in ("fedavg", "retrain"):
            assert "reference" not in score
            continue
        change = (score["gained"] - score["lost"]) / score["count"]
        assert change == pytest.approx(score["value"] - score["reference"])


def test_no_update_is_kept_on_disk(finished: Path) -> None:
    kept = sorted(path.stem for path in (finished / "seed-0" / "states").iterdir())
    methods = ["fine-tune", "leaver-own", "projected-ascent", "reference"]
    assert kept == ["fedavg", *methods, "retrain", "retrain-again"]


def test_membership_is_attacked_on_every_arm_where_it_is_judged(finished: Path) -> None:
    result = json.loads((finished / "seed-0" / "result.json").read_text())
    trained = {"fedavg@3", "retrain@3", "retrain-again@3"}
    judged = {"projected-ascent@2", "fine-tune@2", "reference@2"}
    keys = {*trained, "projected-ascent@1", *judged}
    assert set(result["membership"]) == keys
    assert set(result["membership"]["fedavg@3"]) == {"yeom", "shokri"}
    assert result["reports"]["projected-ascent"]["steps"] > 0
    assert result["reports"]["reference"]["ended_by"] == "no-steps"
    assert result["history"] is None


def test_the_same_seed_ends_with_the_same_digests(finished: Path, tmp_path: Path) -> None:
    again, _ = run(tmp_path)
    assert again.name == finished.name
    assert outcome(again / "seed-0") == outcome(finished / "seed-0")


def test_a_second_run_is_recognised_and_more_seeds_are_added(tmp_path: Path) -> None:
    folder, first = run(tmp_path)
    before = (folder / "seed-0" / "result.json").stat().st_mtime_ns
    _, second = run(tmp_path, seeds=2)
    assert first.events[0] == ("begin", 15)
    assert second.events[:2] == [("reused", 0), ("begin", 15)]
    assert (folder / "seed-0" / "result.json").stat().st_mtime_ns == before
    assert outcome(folder / "seed-0")["curve"] != outcome(folder / "seed-1")["curve"]


def test_other_data_or_another_model_is_another_run(finished: Path, tmp_path: Path) -> None:
    same, _ = run(tmp_path)
    assert same.name == finished.name
    config = presets.load(str(tiny.write(tmp_path, tiny.PAPER)))
    (tmp_path / "tiny_model.py").write_text(tiny.MODEL.replace("16", "8"))
    model = runner.run([config], [0], tmp_path / "runs", RecordedProgress(), search=tmp_path)[0]
    tiny.write(tmp_path, tiny.PAPER)
    with np.load(tmp_path / "tiny.npz") as arrays:
        changed = {**arrays, "y_train": arrays["y_train"][::-1]}
    np.savez(tmp_path / "tiny.npz", allow_pickle=False, **changed)
    data = runner.run([config], [0], tmp_path / "runs", RecordedProgress(), search=tmp_path)[0]
    assert len({finished.name, model.name, data.name}) == 3


def test_unequal_skewed_and_clean_federations_run(tmp_path: Path) -> None:
    clean = tiny.PAPER.replace('name = "backdoor", share = 0.5', 'name = "clean"')
    skewed = clean + 'clients.partition = "dirichlet"\nclients.alpha = 0.5\n'
    sizes = clean + 'clients.partition = "sizes"\nclients.sizes = [20, 50, 70]\n'
    flipped = tiny.PAPER.replace("backdoor", "flipped")
    for index, text in enumerate((flipped, skewed, sizes)):
        folder = tmp_path / str(index)
        folder.mkdir()
        found, _ = run(folder, text)
        assert (found / "seed-0" / "result.json").exists()
    weight = states.load(found / "seed-0" / "states" / "leaver-own.safetensors")[1]["weight"]
    assert float(weight) == pytest.approx(20 / 140)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that must not be there")
@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_every_executor_runs_an_experiment_and_is_named_in_its_record(
    executor: str, finished: Path, tmp_path: Path
) -> None:
    folder, _ = run(tmp_path, tiny.PAPER + f'executor = "{executor}"\n')
    seed = folder / "seed-0"
    environment = json.loads((seed / "environment.json").read_text())
    assert (environment["executor"], environment["precision"]) == (executor, "float32")
    assert folder.name == finished.name  # the same experiment, however it is computed
    with pytest.raises(RecordError, match=f"computed by executor '{executor}', not 'cpu'"):
        run(tmp_path, tiny.PAPER + 'executor = "cpu"\n')
    for one, other in zip(rows(seed), rows(finished / "seed-0"), strict=True):
        assert (one["arm"], one["round"]) == (other["arm"], other["round"])
        found, expected = (r["scores"]["clean_accuracy"]["value"] for r in (one, other))
        assert found == pytest.approx(expected, abs=0.1)


def test_impossible_runs_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    cases = {
        "clients.count = 500\nclients.leaver = 400": (ConfigError, "150"),
        "clients.count = 3\nclients.partition = 'sizes'\nclients.sizes = [90, 90, 90]": (
            ConfigError,
            "270",
        ),
        "clients.count = 3\ndevice = 'cuda'": (ConfigError, "no GPU"),
    }
    for text, (error, match) in cases.items():
        config = tiny.PAPER.replace("clients.count = 3", text)
        with pytest.raises(error, match=match):
            run(tmp_path, config)
    assert not (tmp_path / "runs").exists()


def test_damaged_records_are_named(tmp_path: Path) -> None:
    folder, _ = run(tmp_path)
    result = folder / "seed-0" / "result.json"
    result.write_text("{")
    with pytest.raises(RecordError, match=r"result\.json: damaged record"):
        run(tmp_path)
    result.unlink()
    (folder / "seed-0" / "states" / "fedavg.safetensors").write_bytes(b"rubbish")
    with pytest.raises(RecordError, match=r"fedavg\.safetensors: not a readable"):
        run(tmp_path)


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found, _ = run(tmp_path_factory.mktemp("one-by-one"), seeds=4, lanes=1)
    return outcomes(found)


def outcomes(found: Path) -> dict[str, dict[str, Any]]:
    return {seed.name: outcome(seed) for seed in found.glob("seed-*")}


def test_lanes_change_no_record(
    tmp_path: Path, one_by_one: dict[str, dict[str, Any]], finished: Path
) -> None:
    found, progress = run(tmp_path, seeds=4, lanes=3)
    assert progress.lanes == 3
    assert outcomes(found) == one_by_one
    assert one_by_one["seed-0"] == outcome(finished / "seed-0")
    environment = json.loads((found / "seed-0" / "environment.json").read_text())
    assert (environment["lanes"], environment["precision"]) == (3, "float32")
    assert environment["executor"]


class Impatient(RecordedProgress):
    """Interrupts the run after so many rounds, from the thread that records."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.left = rounds

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        super().round(arm, number, row)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("rounds", [2, 9, 17])
def test_an_interrupted_run_goes_on_in_other_lanes_to_the_same_records(
    tmp_path: Path, one_by_one: dict[str, dict[str, Any]], lanes: int, rounds: int
) -> None:
    config = presets.load(str(tiny.write(tmp_path, tiny.PAPER)))
    runs = tmp_path / "runs"
    with pytest.raises(KeyboardInterrupt):
        runner.run([config], range(4), runs, Impatient(rounds), search=tmp_path, lanes=lanes)
    assert not list(runs.rglob(".*.part"))
    assert len(list(runs.rglob("result.json"))) < 4
    found = runner.run(
        [config], range(4), runs, RecordedProgress(), search=tmp_path, lanes=4 - lanes
    )[0]
    assert outcomes(found) == one_by_one


def test_a_broken_seed_leaves_the_others_resumable(
    tmp_path: Path, one_by_one: dict[str, dict[str, Any]]
) -> None:
    config = presets.load(str(tiny.write(tmp_path, tiny.PAPER)))
    runs = tmp_path / "runs"
    folder = runner.run([config], [1], runs, RecordedProgress(), search=tmp_path)[0]
    (folder / "seed-1" / "result.json").unlink()
    broken = folder / "seed-1" / "states" / "retrain.safetensors"
    broken.write_bytes(b"rubbish")
    with pytest.raises(RecordError, match=r"seed-1.*retrain\.safetensors: not a readable"):
        runner.run([config], range(4), runs, RecordedProgress(), search=tmp_path, lanes=2)
    assert len(list(folder.glob("*/result.json"))) < 3
    shutil.rmtree(folder / "seed-1")
    runner.run([config], range(4), runs, RecordedProgress(), search=tmp_path, lanes=2)
    assert outcomes(folder) == one_by_one


def test_cells_fill_the_lanes_together_and_share_their_data(
    tmp_path: Path, one_by_one: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def load(config: Config) -> Dataset:
        loaded.append(config.name)
        return load_dataset(config)

    monkeypatch.setattr(setup, "load_dataset", load)
    config = presets.load(str(tiny.write(tmp_path, tiny.PAPER)))
    other = override(config, {"name": "other", "clients.count": 4})
    progress = RecordedProgress()
    folders = runner.run(
        [config, other, config], range(2), tmp_path / "runs", progress, search=tmp_path, lanes=4
    )
    assert progress.lanes == 4
    assert folders[0] == folders[2] != folders[1]
    assert loaded == [config.name]
    assert Counter(event for event, _ in progress.events)["end"] == 4
    assert outcomes(folders[0]) == {key: one_by_one[key] for key in ("seed-0", "seed-1")}


def test_an_error_while_recording_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: SeedFolder, row: dict[str, object]) -> None:
        if row["round"] == 2:
            raise StorageError("no space left")
        append(self, row)

    append = SeedFolder.append_row
    monkeypatch.setattr(SeedFolder, "append_row", full)
    with pytest.raises(StorageError, match="no space left"):
        run(tmp_path)
    (seed,) = tmp_path.glob("runs/*/seed-0")
    assert [row["round"] for row in rows(seed)] == [0, 1]
    monkeypatch.undo()
    run(tmp_path)
    assert [row["round"] for row in rows(seed)[:4]] == [0, 1, 2, 3]


def test_two_processes_do_not_write_one_seed(tmp_path: Path) -> None:
    folder, _ = run(tmp_path)
    seed = SeedFolder(folder / "seed-9")
    program = (
        "import sys, time; from pathlib import Path\n"
        "from secede.experiments.records import SeedFolder\n"
        "with SeedFolder(Path(sys.argv[1])).locked():\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(seed.path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    try:
        with pytest.raises(RecordError, match=f"written by process {holder.pid}"), seed.locked():
            pass
    finally:
        holder.kill()
        holder.wait()
    with seed.locked():
        pass


DESTROYER = """
from dataclasses import dataclass

from secede.unlearning.method import Method, Start


@dataclass(frozen=True)
class Destroyer(Method):
    def start(self, server):
        return Start(state={name: v * float("nan") for name, v in server.global_state.items()})
"""


def test_a_method_that_destroys_the_model_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "destroying.py").write_text(DESTROYER)
    config = tiny.CONFIG + "methods = ['fine-tune', 'destroying:Destroyer', 'reference']\n"
    folder, _ = run(tmp_path, config)
    result = json.loads((folder / "seed-0" / "result.json").read_text())
    assert set(result["failed"]) == {"destroying:Destroyer"}
    assert "not finite" in result["failed"]["destroying:Destroyer"]
    assert "reference" in result["arms"]
    assert all(row["arm"] != "destroying:Destroyer" for row in rows(folder / "seed-0"))
    read = read_run(folder)
    assert read.config.methods == ("fine-tune", "reference")
    assert list(read.failed) == ["destroying:Destroyer"]


def test_if_the_judged_method_destroys_the_model_the_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "wrecking.py").write_text(DESTROYER)
    config = tiny.CONFIG + "methods = ['wrecking:Destroyer', 'reference']\n"
    with pytest.raises(StateError, match="not finite"):
        run(tmp_path, config)
