"""Ready experiments: the demo, every cell of the paper, and the same cells with more methods.

A cell's file says what is trained; `paper.toml` and `compare.toml` say which methods then erase.
Imports no torch.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from secede.errors import ConfigError, did_you_mean
from secede.experiments.config import Config, parse, resolve_data_path

_ROOT = resources.files("secede.experiments.presets")

PAPER_CELLS = (
    "paper/mnist-backdoor-5",
    "paper/mnist-backdoor-10",
    "paper/emnist47-backdoor-5",
    "paper/emnist47-backdoor-10",
    "paper/cifar10-backdoor-5",
    "paper/cifar10-backdoor-10",
    "paper/mnist-flipped-5",
    "paper/mnist-flipped-10",
    "paper/emnist47-flipped-5",
    "paper/emnist47-flipped-10",
)
SUITES = ("paper", "compare")  # each a file of its own, laid over every cell
NAMES = (
    "demo",
    *(cell.replace("paper/", f"{suite}/") for suite in SUITES for cell in PAPER_CELLS),
)


def load(name_or_path: str) -> Config:
    """Return a preset by name, or the config in a TOML file."""
    if name_or_path in NAMES:
        suite, _, cell = name_or_path.rpartition("/")
        files = (f"paper/{cell}", suite) if suite else (name_or_path,)
        return parse("\n".join(map(_read, files)), name=name_or_path)
    path = Path(name_or_path)
    if not name_or_path.endswith(".toml"):
        raise ConfigError(
            f"no preset {name_or_path!r}; {did_you_mean(name_or_path, NAMES)}"
            f"expected a path ending in .toml or one of: {', '.join(NAMES)}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    name = re.sub(r"[^A-Za-z0-9._ -]+", "-", path.stem)[:80] or "run"
    return resolve_data_path(parse(text, name=name), path.parent)


def _read(name: str) -> str:
    return _ROOT.joinpath(f"{name}.toml").read_text(encoding="utf-8")
