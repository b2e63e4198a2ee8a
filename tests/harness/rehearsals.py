"""A rehearsal small enough for tests: its canaries show before, and not after retraining."""

from __future__ import annotations

from pathlib import Path

from harness import tiny
from harness.audits import Events
from secede.experiments import Config, presets
from secede.experiments.rehearsal import Measured, Twin, make_twin, rehearse

CONFIG = """
data = "tiny.npz"
model = "tiny_model:build"
device = "cpu"
executor = "loop"
clients.count = 3
scenario = { name = "backdoor", share = 0.5 }
training = { rounds = 8, batch_size = 16, learning_rate = 0.2 }
canaries = { count = 20, copies = 4, max_share = 0.5 }
"""
METHODS = ("weight-negation", "second-choice")


def write(folder: Path, text: str = CONFIG) -> Path:
    """Write a twin's data, model and config, and return the config's path."""
    return tiny.write(folder, text, train=600, test=100)


def config(folder: Path, text: str = CONFIG) -> Config:
    """Return the config of a small twin."""
    return presets.load(str(write(folder, text)), methods_overridden=True)


def twin(folder: Path, text: str = CONFIG, methods: tuple[str, ...] = METHODS) -> Twin:
    """Return a small twin."""
    return make_twin(config(folder, text), {}, methods=methods, max_rounds=2)


def measured(of: Twin, folder: Path, seeds: int = 1, events: Events | None = None) -> Measured:
    """Run a small rehearsal."""
    return rehearse(of, seeds, events or Events(), search=folder)
