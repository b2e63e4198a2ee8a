"""Ready experiments: the demo, and cells of which each belongs to one suite or several.

A cell's file says what is trained; a suite's file says which methods then erase. Imports no torch.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from secede.errors import ConfigError, did_you_mean
from secede.experiments.config import Config, parse, resolve_data_path

_ROOT = resources.files("secede.experiments.presets")

PAPER = (
    "mnist-backdoor-5",
    "mnist-backdoor-10",
    "emnist47-backdoor-5",
    "emnist47-backdoor-10",
    "cifar10-backdoor-5",
    "cifar10-backdoor-10",
    "mnist-flipped-5",
    "mnist-flipped-10",
    "emnist47-flipped-5",
    "emnist47-flipped-10",
)
NATURAL = (
    "mnist-clean-5",
    "mnist-exclusive-5",
    "mnist-class-5",
    "mnist-backdoor-small",
    "mnist-backdoor-half",
    "mnist-backdoor-skewed",
    "mnist-flipped-skewed",
)
UNEVEN = NATURAL[3:]
SUITES = {
    "paper": PAPER,  # its own method
    "compare": PAPER,  # those that need neither history nor data at the server
    "controls": PAPER,  # our hold on others' steps, and the paper's at several distances
    "ablation": PAPER + UNEVEN,  # ours without one of its parts
    "history": (*PAPER, "mnist-exclusive-5"),  # those that do, or that cost like retraining
    "natural": NATURAL,  # leavers that planted nothing, small and large ones, skewed labels
}
NAMES = ("demo", *(f"{suite}/{cell}" for suite, cells in SUITES.items() for cell in cells))


def load(name_or_path: str) -> Config:
    """Return a preset by name, or the config in a TOML file."""
    if name_or_path in NAMES:
        suite, _, cell = name_or_path.rpartition("/")
        files = (f"cells/{cell}", suite) if suite else (name_or_path,)
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
    return resolve_data_path(parse(text, name=name, file=str(path)), path.parent)


def _read(name: str) -> str:
    return _ROOT.joinpath(f"{name}.toml").read_text(encoding="utf-8")
