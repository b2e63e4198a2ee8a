"""Audits small enough for tests: one to run, and margins made up without any training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness import tiny
from secede.audit.ensembles.margins import ENSEMBLES, SAMPLE_SETS, Ensembles
from secede.data import Dataset
from secede.experiments import Config, load_dataset, presets
from secede.experiments.config import override
from secede.experiments.ensembles.material import Material, gather
from secede.experiments.ensembles.options import AuditOptions
from secede.experiments.ensembles.runner import Audit, run_audit
from secede.experiments.ensembles.train import Job

CONFIG = """
data = "tiny.npz"
model = "tiny_model:build"
clients.count = 3
scenario = { name = "backdoor", share = 0.5 }
training = { rounds = 2, batch_size = 32, learning_rate = 0.2 }
post_training.rounds = 2
methods = ["second-choice"]
"""
SIZES = {"train": 300, "test": 200}
POOL = 240  # samples, of made-up margins


def write(folder: Path, text: str = CONFIG) -> Path:
    """Write an audit's data, model and config, and return the config's path."""
    return tiny.write(folder, text, **SIZES)


def config(folder: Path, text: str = CONFIG) -> Config:
    """Return the config of a small audit on the CPU."""
    return override(presets.load(str(write(folder, text))), {"device": "cpu"})


def dataset(folder: Path, text: str = CONFIG) -> Dataset:
    """Return its data set."""
    return load_dataset(config(folder, text))


def job(folder: Path, text: str = CONFIG, **options: Any) -> Job:
    """Return what a federation's training depends on."""
    of = config(folder, text)
    material: Material = gather(of, load_dataset(of), 0)
    return Job(config=of, options=AuditOptions(**options), material=material, search=folder)


class Events:
    """Records what an audit reports."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.begun: list[int] = []
        self.rounds: list[str] = []
        self.ended, self.stop_at = 0, stop_at

    def expect(self, federations: int, finished: int, lanes: int) -> None:
        self.expected = (federations, finished, lanes)

    def begin(self, number: int, rounds: int) -> Events:
        if number == self.stop_at:
            raise KeyboardInterrupt
        self.begun.append(number)
        self.announced = rounds
        return self

    def round(self, phase: str) -> None:
        self.rounds.append(phase)

    def end(self, seconds: float) -> None:
        self.ended += 1


def run(
    folder: Path,
    models: int,
    events: Events | None = None,
    *,
    lanes: int = 1,
    **options: Any,
) -> Audit:
    """Run a small audit below `folder`, where `write` has been."""
    return run_audit(
        presets.load(str(folder / "tiny.toml")),
        AuditOptions(**options),
        models,
        folder / "runs",
        events or Events(),
        search=folder,
        lanes=lanes,
    )


def made_up(models: int = 8, *, shift: float = 1.0, seed: int = 0) -> Ensembles:
    """Return margins where the erased models lie `shift` below the retrained ones."""
    draw = np.random.default_rng(seed)
    member = np.zeros((models, POOL), dtype=bool)
    for row in member:
        row[draw.permutation(POOL)[: POOL // 2]] = True
    moved = {"original": 3.0, "erased": -shift}
    margins = {
        kind: {
            name: draw.normal(moved.get(kind, 0.0), 1.0, (models, POOL if name == "pool" else 40))
            for name in SAMPLE_SETS
        }
        for kind in ENSEMBLES
    }
    scalars = {
        "clean_accuracy": {kind: draw.uniform(0.9, 1.0, models) for kind in ENSEMBLES},
        "attack_success": {kind: np.zeros(models) for kind in ENSEMBLES},
    }
    return Ensembles(margins=margins, member=member, scalars=scalars)
