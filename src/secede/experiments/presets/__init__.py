"""Presets: the demo, and the cells of suites.

A cell's file says what is trained, a suite's file which methods then erase. Suites joined by a plus
train a cell once for all their methods. Imports no torch.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from secede import files
from secede.errors import ConfigError, did_you_mean
from secede.experiments.config import MAX_CHARACTERS, Config, build, parse, resolve_data_path

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
UNEVEN = (
    "mnist-backdoor-small",
    "mnist-backdoor-half",
    "mnist-clean-half",
    "mnist-backdoor-skewed",
    "mnist-flipped-skewed",
)
NATURAL = (
    "mnist-clean-5",
    "mnist-exclusive-5",
    "mnist-nearly-5",
    "mnist-class-5",
    *UNEVEN,
)
SUITES = {
    "paper": PAPER,  # the paper's own method
    "compare": PAPER,  # methods that need neither history nor data at the server
    "controls": PAPER,  # our post-training on others' steps, and the paper's at several distances
    "ablation": PAPER + UNEVEN,  # ours without one of its parts
    # Methods that need them, or cost as much as retraining.
    "history": (*PAPER, "mnist-exclusive-5", "mnist-nearly-5"),
    # Methods of others as published, and baselines from stored models.
    "regimes": (*PAPER, "mnist-exclusive-5", "mnist-nearly-5"),
    "natural": NATURAL,  # leavers that planted nothing, small and large ones, skewed labels
}
NAMES = ("demo", *(f"{suite}/{cell}" for suite, cells in SUITES.items() for cell in cells))


def load(name_or_path: str, *, methods_overridden: bool = False) -> Config:
    """Return a preset by name, or the config in a TOML file.

    With `methods_overridden`, its methods are not checked: `override` replaces them.
    """
    suite, _, cell = name_or_path.rpartition("/")
    if name_or_path in NAMES and not suite:
        return parse(_read(name_or_path), name=name_or_path)
    if suite and all(cell in SUITES.get(part, ()) for part in suite.split("+")):
        return build({"name": name_or_path.replace("+", "-"), **_combine(cell, suite.split("+"))})
    path = Path(name_or_path)
    if not name_or_path.endswith(".toml"):
        raise ConfigError(
            f"no preset {name_or_path!r}; {did_you_mean(name_or_path, NAMES)}"
            f"expected a path ending in .toml, demo, or a suite and a cell such as "
            f"{NAMES[1]} (suites: {', '.join(SUITES)}); `secede presets` lists them"
        )
    try:
        text = files.read_limited(path, 4 * MAX_CHARACTERS).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    name = re.sub(r"[^A-Za-z0-9._ -]+", "-", path.stem)[:80] or "run"
    config = parse(text, name=name, file=str(path), methods_overridden=methods_overridden)
    return resolve_data_path(config, path.parent)


def cells(suite: str) -> tuple[str, ...]:
    """Return the cells of a suite, or those common to suites joined by a plus."""
    parts = suite.split("+")
    if unknown := [part for part in parts if part not in SUITES]:
        raise ConfigError(f"no suite {unknown[0]!r}; expected one of: {', '.join(SUITES)}")
    if not (common := tuple(c for c in SUITES[parts[0]] if all(c in SUITES[p] for p in parts))):
        raise ConfigError(
            f"no cell is in all of the suites {', '.join(parts)}: run them one by one"
        )
    return common


def _combine(cell: str, suites: Sequence[str]) -> dict[str, Any]:
    """Return a cell's values with those of the suites: the methods of all, once each.

    The first suite's first method is the one that a report judges.
    """
    values = tomllib.loads(_read(f"cells/{cell}"))
    methods: dict[str, None] = {}
    settings: dict[str, Any] = {}
    for suite in suites:
        more = tomllib.loads(_read(suite))
        methods |= dict.fromkeys(more.pop("methods", ()))
        _add(settings, more.pop("settings", {}), suite)
        _add(values, more, suite)
    return values | {"methods": list(methods), "settings": settings}


def _add(values: dict[str, Any], more: dict[str, Any], suite: str) -> None:
    for key, value in more.items():
        if values.setdefault(key, value) != value:
            raise ConfigError(f"the suite {suite} has another {key}: run it by itself")


def _read(name: str) -> str:
    return _ROOT.joinpath(f"{name}.toml").read_text(encoding="utf-8")
