from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import tiny
from harness.paths import HARNESS
from harness.recorded_progress import RecordedProgress
from harness.runs import outcome, rows, run
from secede import state as states
from secede.canaries import read
from secede.experiments import presets, runner
from secede.experiments.config import override
from secede.experiments.setup import federate, load_dataset, resolve_device
from secede.federation.engine import aggregate
from secede.state import State

RECALL_METHOD = HARNESS / "recall_method.py"


def with_methods(folder: Path, *names: str) -> str:
    shutil.copy(RECALL_METHOD, folder)
    sys.modules.pop("recall_method", None)  # of another test's folder
    return tiny.CONFIG + f"methods = {list(names)}\n"


def of_arm(seed: Path, arm: str) -> list[dict[str, Any]]:
    found = [row for row in outcome(seed)["curve"] if row["arm"] == arm]
    return [{"digest": row["digest"], "cost": row["cost"]} for row in found]


def test_what_a_client_remembers_in_an_arm_is_from_training_and_not_from_another_arm(
    tmp_path: Path,
) -> None:
    found = {}
    for first, second in (
        ("fine-tune", "recall_method:Recall"),
        ("recall_method:Recall", "fine-tune"),
    ):
        folder = tmp_path / first.partition(":")[0]
        folder.mkdir()
        seed = run(folder, with_methods(folder, first, second))[0] / "seed-0"
        found[first] = of_arm(seed, "recall_method:Recall")
    assert found["fine-tune"] == found["recall_method:Recall"]
    assert found["fine-tune"][0]["digest"] == states.digest(_mean_of_own_states(folder))


def _mean_of_own_states(folder: Path) -> State:
    """Train once more by hand; return the mean of what the retained clients sent last."""
    config = presets.load(str(folder / "tiny.toml"))
    config = override(config, {"device": resolve_device(config.device)})
    federation = federate(config, load_dataset(config), 0, search=folder)
    state: State = federation.engine.initial_state("initial")
    for number in range(1, config.training.rounds + 1):
        reply = federation.engine.train_round(
            state, federation.everyone, phase="training", number=number
        )
        state = aggregate(reply.updates)
    last = [update.state for update in reply.updates if update.client != federation.leaver]
    return states.mean(last, [1] * len(last))


def test_an_arm_begun_by_another_process_finds_what_clients_remember(tmp_path: Path) -> None:
    text = with_methods(tmp_path, "fine-tune", "recall_method:Recall")
    through = run(tmp_path, text)[0] / "seed-0"
    expected = outcome(through)

    class Halt(RecordedProgress):
        def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
            if row and (arm, number) == ("fine-tune", 1):
                raise KeyboardInterrupt

    config = presets.load(str(tmp_path / "tiny.toml"))
    elsewhere = tmp_path / "halted"
    with pytest.raises(KeyboardInterrupt):
        runner.run([config], [0], elsewhere, Halt(), search=tmp_path)
    found = runner.run([config], [0], elsewhere, RecordedProgress(), search=tmp_path)[0]
    assert outcome(found / "seed-0") == expected
    assert len(rows(found / "seed-0")) == 4 + 4 + 4 + 3 + 3


def test_canaries_are_read_in_every_round_of_every_arm(tmp_path: Path) -> None:
    text = tiny.PAPER + "canaries = { count = 7, copies = 2, max_share = 0.4 }\n"
    folder, _ = run(tmp_path, text)
    config = override(presets.load(str(tmp_path / "tiny.toml")), {"device": "cpu"})
    federation = federate(config, load_dataset(config), 0, search=tmp_path)
    canaries = federation.canaries[0].canaries
    seed = folder / "seed-0"
    found = {(row["arm"], row["round"]): row for row in rows(seed)}
    assert all(sum(*row["canaries"]["ranks"]) == 7 for row in found.values())
    for arm, last in (("fedavg", 3), ("retrain", 3), ("fine-tune", 2)):
        state, _ = states.load(seed / "states" / f"{arm}.safetensors")
        counts = read(federation.engine.model(state), canaries)
        assert found[arm, last]["canaries"] == counts.to_record()


def test_without_canaries_records_say_nothing_of_them(tmp_path: Path) -> None:
    folder, _ = run(tmp_path)
    assert not any("canaries" in row for row in rows(folder / "seed-0"))
