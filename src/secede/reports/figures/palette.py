"""Colours and line styles, the same in every figure and on the page.

The three main arms differ in lightness as well as in hue, for colour-blind readers and grey
prints; dashes and marks tell the others apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from secede.reports import names

INK = "#1d2733"
QUIET = "#5b6672"
GRID = "#dfe3e8"
PAPER = "#ffffff"


@dataclass(frozen=True)
class Look:
    """How an arm is drawn, on light paper and on a dark page."""

    colour: str
    dark: str
    width: float
    dashes: tuple[float, ...] = ()
    mark: str = "o"  # matplotlib's letter

    @property
    def linestyle(self) -> tuple[float, tuple[float, ...]] | Literal["-"]:
        """The line style in matplotlib's form."""
        return (0.0, self.dashes) if self.dashes else "-"


LOOKS = {
    names.FEDAVG: Look("#8b939c", "#9aa3ad", 1.4, (1.0, 2.2)),
    names.RETRAIN: Look("#1f4e8c", "#7fb0ef", 2.2),
    names.FINE_TUNE: Look("#a58a5b", "#c9b184", 1.1, (4.5, 2.0)),
    names.REFERENCE: Look("#5f9a8e", "#86c2b5", 1.1, (2.0, 1.6)),
    names.PROJECTED_ASCENT: Look("#7b4fa3", "#c39be8", 1.3, (6.0, 1.6, 1.2, 1.6)),
    names.ERASED: Look("#c85200", "#ff8a3d", 2.4),
    "other-1": Look("#a8325e", "#f08bb0", 1.1, mark="s"),
    "other-2": Look("#3a7d2c", "#8fd07f", 1.1, mark="D"),
    "other-3": Look("#1b7fa6", "#6cc7ea", 1.1, mark="^"),
    "other-4": Look("#8a6d00", "#dcc04a", 1.1, mark="v"),
    "other-5": Look("#5a5fc0", "#a6aaf5", 1.1, mark="P"),
    "other-6": Look("#7a4b3a", "#d9a48f", 1.1, mark="X"),
    "other-7": Look("#006d77", "#5fc9d4", 1.1, mark="h"),
    "other-8": Look("#9c2fa8", "#e38cf0", 1.1, mark="p"),
}
_OTHERS = tuple(key for key in LOOKS if key.startswith("other-"))

# CSS variables: (light, dark).
THEME = {
    "ink": (INK, "#e7ebf0"),
    "quiet": (QUIET, "#a4aeb9"),
    "grid": (GRID, "#323c47"),
    "paper": (PAPER, "#161c23"),
    **{f"arm-{arm}": (look.colour, look.dark) for arm, look in LOOKS.items()},
}


def look_keys(shown: Sequence[str]) -> dict[str, str]:
    """Return the key in `LOOKS` of each arm; arms without a look of their own share a few."""
    others = [arm for arm in shown if arm not in LOOKS]
    shared = {arm: _OTHERS[index % len(_OTHERS)] for index, arm in enumerate(others)}
    return {arm: shared.get(arm, arm) for arm in shown}


def settings(salt: str) -> dict[Any, Any]:
    """Return matplotlib's settings for a figure; `salt` makes its SVG ids unique and stable."""
    return {
        "svg.fonttype": "path",
        "svg.hashsalt": salt,
        "font.family": "DejaVu Sans",
        "font.size": 9.5,
        "text.color": INK,
        "axes.labelcolor": QUIET,
        "axes.edgecolor": GRID,
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": INK,
        "axes.titlepad": 22.0,
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "xtick.labelsize": 9.0,
        "ytick.labelsize": 9.0,
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "legend.frameon": False,
    }
