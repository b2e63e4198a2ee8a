"""Runs that are killed end with the same records as runs that are not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import tiny
from harness.paths import HARNESS, TESTS
from harness.runs import outcome

KILLER = """
import os, signal, sys
from pathlib import Path

sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
import sklearn.linear_model  # heavy modules once, before the forks
import torch, torch._dynamo
from harness.recorded_progress import RecordedProgress
from secede import files
from secede.experiments import presets, runner, seed_run

torch.set_num_threads(1)
folder, seed_run.CHECKPOINT_SECONDS = Path(sys.argv[2]), float(sys.argv[4])
config = presets.load(str(folder / "tiny.toml"))


def attempt(kill_at):
    # Every file operation, once before and once after it took effect.
    count = 0

    def deadly(operation):
        def wrapped(*args, **kwargs):
            nonlocal count
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            done = operation(*args, **kwargs)
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return done
        return wrapped

    files.os.replace = deadly(os.replace)
    files.os.fsync = deadly(lambda _: None)  # a kill does not care what reached the disk
    runner.run([config], [0], Path(runs), RecordedProgress(), search=folder)


def child(kill_at):
    pid = os.fork()
    if pid == 0:
        attempt(kill_at)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


step, kill_at, killed = int(sys.argv[3]), 1, 0
while True:
    runs = folder / f"killed-{kill_at}"
    if child(kill_at) == 0:
        break
    killed += 1
    assert child(-1) == 0
    kill_at += step
print(killed)
"""


# What lies on the disk besides checkpoints, and what methods remember from round to round.
KEEPING = (
    tiny.CONFIG.replace("rounds = 3", "rounds = 4")
    + """
methods = [
  "orthogonal-descent", "second-choice", "federaser", "distillation", "recall_method:Recall"
]
situation = { history = true, server_data = 20 }
settings.orthogonal-descent = { rounds = 3, learning_rate = 1.0 }
settings.second-choice = { hold = 1.0 }
"""
)


def _killed(
    folder: Path, step: int, checkpoint_seconds: float, config: str = tiny.CONFIG
) -> list[Path]:
    tiny.write(folder, config)
    shutil.copy(HARNESS / "recall_method.py", folder)
    here = str(TESTS)
    ended = subprocess.run(
        [sys.executable, "-c", KILLER, here, str(folder), str(step), str(checkpoint_seconds)],
        check=True,
        capture_output=True,
        text=True,
    )
    seeds = sorted(folder.glob("killed-*/*/seed-0"))
    assert int(ended.stdout) == len(seeds) - 1  # the last one was never killed
    return seeds


def test_a_run_killed_now_and_then_resumes_to_the_same_digests(tmp_path: Path) -> None:
    # Checkpoints at the ends of arms only: several rounds are computed again.
    seeds = _killed(tmp_path, 22, 1e9)
    assert len(seeds) > 3
    *killed, undisturbed = sorted(seeds, key=lambda s: int(s.parts[-3].rpartition("-")[2]))
    assert "retrain-again" in outcome(undisturbed)["result"]["arms"]
    for seed in killed:
        assert outcome(seed) == outcome(undisturbed), seed


@pytest.mark.slow
def test_a_run_killed_at_any_file_operation_resumes_to_the_same_digests(tmp_path: Path) -> None:
    seeds = _killed(tmp_path, 3, 0.0)  # an odd step meets before and after in turn
    *killed, undisturbed = sorted(seeds, key=lambda s: int(s.parts[-3].rpartition("-")[2]))
    assert len(killed) > 40
    for seed in killed:
        assert outcome(seed) == outcome(undisturbed), seed


def test_a_run_with_a_history_killed_now_and_then_resumes_to_the_same_digests(
    tmp_path: Path,
) -> None:
    seeds = _killed(tmp_path, 50, 1e9, KEEPING)
    *killed, undisturbed = sorted(seeds, key=lambda s: int(s.parts[-3].rpartition("-")[2]))
    assert len(killed) > 3
    ended = outcome(undisturbed)
    assert set(ended["result"]["arms"]) > {"orthogonal-descent", "second-choice", "federaser"}
    assert ended["result"]["history"]["rounds"] == 2
    for seed in killed:
        assert outcome(seed) == ended, seed
        assert not (seed / "history").exists()


@pytest.mark.slow
def test_a_run_with_a_history_killed_at_any_file_operation_resumes_to_the_same_digests(
    tmp_path: Path,
) -> None:
    seeds = _killed(tmp_path, 5, 0.0, KEEPING)
    *killed, undisturbed = sorted(seeds, key=lambda s: int(s.parts[-3].rpartition("-")[2]))
    assert len(killed) > 40
    ended = outcome(undisturbed)
    for seed in killed:
        assert outcome(seed) == ended, seed
