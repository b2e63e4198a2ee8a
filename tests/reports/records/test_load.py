import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from secede.errors import RecordError
from secede.reports.records.load import _run_folders, load_runs, read_run

Write = Callable[..., Path]


def test_a_run_folder_becomes_a_run(write_run: Write) -> None:
    folder = write_run(seeds=(0, 1, 10))
    run = read_run(folder)
    assert [seed.seed for seed in run.seeds] == [0, 1, 10]
    assert run.config.arms == ("fedavg", "retrain", "projected-ascent", "fine-tune", "reference")
    assert len(run.seeds[0].curves["projected-ascent"]) == 11
    assert run.seeds[2].local_step is not None
    assert run.seeds[2].local_step.steps == 22
    assert run.seeds[0].environment["torch"] == "2.13.0"
    assert ("projected-ascent", 1) in run.seeds[0].membership
    assert run.unfinished == ()


def test_runs_are_found_below_a_folder_in_the_papers_order_and_once(write_run: Write) -> None:
    cells = [("flipped", "mnist", 5), ("backdoor", "cifar10", 5), ("backdoor", "mnist", 10)]
    folders = [write_run(scenario=s, data=d, clients=n, seeds=(0,)) for s, d, n in cells]
    records = load_runs([folders[0].parent, folders[0]])
    assert [run.config.name for run in records.runs] == [
        "paper/mnist-backdoor-10",
        "paper/cifar10-backdoor-5",
        "paper/mnist-flipped-5",
    ]


def test_links_to_runs_are_followed_and_never_in_circles(write_run: Write, tmp_path: Path) -> None:
    linked = tmp_path / "elsewhere"
    linked.mkdir()
    (linked / "run").symlink_to(write_run())
    (linked / "up").symlink_to(linked)
    assert len(load_runs([linked]).runs) == 1
    assert len(list(_run_folders(linked))) == 1


def test_a_seed_without_result_is_left_out_and_said(write_run: Write) -> None:
    folder = write_run(seeds=(0, 1))
    (folder / "seed-1" / "result.json").unlink()
    curves = folder / "seed-1" / "curves.jsonl"
    curves.write_text(curves.read_text()[:-30])  # torn, as in a run that is still going
    run = read_run(folder)
    assert [seed.seed for seed in run.seeds] == [0]
    assert run.unfinished == ("seed-1",)


def test_a_run_without_any_finished_seed_is_said_beside_others(write_run: Write) -> None:
    done, open_ = write_run(seeds=(0,)), write_run(seeds=(0,), clients=10)
    (open_ / "seed-0" / "result.json").unlink()
    records = load_runs([done.parent])
    assert [run.folder for run in records.runs] == [done]
    assert records.unfinished == (open_,)


def test_no_finished_seed_at_all_is_an_error(write_run: Write) -> None:
    folder = write_run(seeds=(0,))
    (folder / "seed-0" / "result.json").unlink()
    for read in (lambda: load_runs([folder]), lambda: read_run(folder)):
        with pytest.raises(RecordError, match=r"no finished seed") as caught:
            read()
        assert caught.value.exit_code == 5


def test_a_path_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"contains no run"):
        load_runs([tmp_path])
    with pytest.raises(RecordError, match=r"not a folder"):
        load_runs([tmp_path / "nowhere"])


def test_a_finished_seed_must_hold_every_arm_it_names(write_run: Write) -> None:
    path = write_run(seeds=(0,)) / "seed-0" / "curves.jsonl"
    kept = [line for line in path.read_text().splitlines() if '"reference"' not in line]
    path.write_text("\n".join(kept) + "\n")
    with pytest.raises(RecordError, match=r"no finished curve for 'reference'"):
        read_run(path.parents[1])


def test_a_finished_seed_must_end_where_its_result_says(write_run: Write) -> None:
    path = write_run(seeds=(0,), methods=("projected-ascent",)) / "seed-0" / "curves.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(RecordError, match=r"projected-ascent ends at round 9 .* says round 10"):
        read_run(path.parents[1])


def test_every_configured_method_must_be_finished(write_run: Write) -> None:
    folder = write_run(seeds=(0,), methods=("second-choice", "fine-tune"))
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "methods": [*config["methods"], "weight-negation"]}))
    with pytest.raises(RecordError, match=r"no finished curve for 'weight-negation'"):
        read_run(folder)


def test_an_arm_that_is_not_configured_is_refused(write_run: Write) -> None:
    folder = write_run(seeds=(0,))
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "methods": ["reference"]}))
    with pytest.raises(RecordError, match=r"arm 'projected-ascent', expected one of fedavg, ret"):
        read_run(folder)


def test_the_scenarios_probe_must_be_there(write_run: Write) -> None:
    path = write_run(seeds=(0,)) / "seed-0" / "curves.jsonl"
    path.write_text(path.read_text().replace("attack_success", "attack_failure"))
    with pytest.raises(RecordError, match=r"fedavg round 0 lacks the score 'attack_success'"):
        read_run(path.parents[1])


def test_seeds_of_another_config_are_refused(write_run: Write) -> None:
    folder, other = write_run(seeds=(0,)), write_run(seeds=(1,), rounds=19)
    shutil.copytree(other / "seed-1", folder / "seed-1")
    with pytest.raises(RecordError, match=r"seed-1.result\.json: has config digest .* seed-0 has"):
        read_run(folder)
    path = folder / "seed-1" / "result.json"
    result = json.loads(path.read_text())
    result["config_digest"] = json.loads((folder / "seed-0" / "result.json").read_text())[
        "config_digest"
    ]
    path.write_text(json.dumps(result))
    with pytest.raises(RecordError, match=r"seed 1 has other arms or rounds than seed 0"):
        read_run(folder)
