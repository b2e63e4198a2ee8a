"""A federation small enough to run in a second: used by several tests, and by child processes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

MODEL = """
from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))
"""
CONFIG = """
data = "tiny.npz"
model = "tiny_model:build"
clients.count = 3
scenario = { name = "backdoor", share = 0.5 }
training = { rounds = 3, batch_size = 16, learning_rate = 0.1 }
post_training.rounds = 2
"""
PAPER = CONFIG + 'methods = ["projected-ascent", "fine-tune", "reference"]\n'


def write(folder: Path, config: str = CONFIG, *, train: int = 150, test: int = 60) -> Path:
    """Write a data set, a model and a config into `folder` and return the config's path."""
    draw = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("train", train), ("test", test)):
        labels = draw.integers(0, 3, count)
        images = draw.integers(0, 120, (count, 8, 8)).astype(np.uint8)
        for index, label in enumerate(labels):
            images[index, 2 * label : 2 * label + 2] += 120
        arrays |= {f"x_{part}": images, f"y_{part}": labels}
    np.savez(folder / "tiny.npz", allow_pickle=False, **arrays)
    (folder / "tiny_model.py").write_text(MODEL)
    sys.modules.pop("tiny_model", None)  # of another test's folder
    path = folder / "tiny.toml"
    path.write_text(config)
    return path
