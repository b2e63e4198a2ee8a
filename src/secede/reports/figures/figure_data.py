"""A figure as a value: panels of bars, lines or marks, the looks of arms, and text alternatives.

Arms look the same in every figure and on the page. The three main ones differ in lightness as well
as in hue, for colour-blind readers and grey prints; dashes and marks tell the others apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from secede.reports import names
from secede.reports.analysis import Estimate, Unit, format_mean, format_points

INK = "#1d2733"
QUIET = "#5b6672"
GRID = "#dfe3e8"
PAPER = "#ffffff"

# Beyond these an axis is logarithmic.
WIDE_LOSS = 5.0  # points of usefulness lost
WIDE_MARGINS = 5.0  # a difference, as a multiple of the allowed one


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
    names.RETRAIN_AGAIN: Look("#3f86d8", "#b7d4f8", 1.4, (4.0, 1.6)),
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


@dataclass(frozen=True)
class BarGroup:
    """A label and its bars, as (arm, value)."""

    label: str
    bars: tuple[tuple[str, Estimate], ...]


@dataclass(frozen=True)
class BarPanel:
    """Groups of bars, one colour per arm."""

    title: str
    value_label: str
    unit: Unit
    groups: tuple[BarGroup, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms shown, in their order."""
        return tuple(dict.fromkeys(arm for group in self.groups for arm, _ in group.bars))

    @property
    def alt(self) -> str:
        """The panel in words, for screen readers."""
        return f"Bar chart, {self.title}, {self.value_label}. " + " ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        for group in self.groups:
            bars = ", ".join(f"{names.label(a)} {format_mean(v, self.unit)}" for a, v in group.bars)
            yield f"{group.label}: {bars}."


@dataclass(frozen=True)
class Line:
    """One arm's values, each at a position (a round, or megabytes)."""

    arm: str
    positions: tuple[float, ...]
    values: tuple[Estimate, ...]


@dataclass(frozen=True)
class LinePanel:
    """Values against positions; `window` is the range of values shown.

    `transposed` puts the values on the horizontal axis; `level` is one arm's value for comparison.
    """

    title: str
    position_label: str
    value_label: str
    unit: Unit
    lines: tuple[Line, ...]
    window: tuple[float, float]
    level: tuple[str, Estimate] | None = None
    transposed: bool = False

    @property
    def vertical_label(self) -> str:
        """The label of the vertical axis."""
        return self.position_label if self.transposed else self.value_label

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms shown, in their order."""
        level = (self.level[0],) if self.level else ()
        return (*level, *(line.arm for line in self.lines))

    @property
    def alt(self) -> str:
        """The panel in words: where each line begins and ends."""
        sentences = (
            f"{names.label(line.arm)} from {format_mean(line.values[0], self.unit)} at "
            f"{line.positions[0]:g} to {format_mean(line.values[-1], self.unit)} at "
            f"{line.positions[-1]:g}."
            for line in self.lines
        )
        heading = f"Line chart, {self.title}, {self.value_label} against {self.position_label}."
        level = ""
        if self.level:
            arm, value = self.level
            level = f" {names.label(arm)}, for comparison: {format_mean(value, self.unit)}."
        return " ".join((heading, *sentences)) + level


@dataclass(frozen=True)
class Mark:
    """One method: its label, its look and its place."""

    label: str
    look: str  # key in the palette
    position: float
    value: Estimate


@dataclass(frozen=True)
class ScatterPanel:
    """Differences of two scores from retraining, in points; those within `allowed` are shaded.

    Each mark has a label beside it instead of a legend.
    """

    title: str
    position_label: str
    value_label: str
    marks: tuple[Mark, ...]
    allowed: tuple[float, float]

    @property
    def is_position_logarithmic(self) -> bool:
        """Whether the horizontal axis is logarithmic beyond one point."""
        return min(mark.position for mark in self.marks) < -WIDE_LOSS

    @property
    def is_difference_logarithmic(self) -> bool:
        """Whether the vertical axis is logarithmic beyond the allowed differences."""
        return any(abs(mark.value.mean) > WIDE_MARGINS * self.allowed[1] for mark in self.marks)

    @property
    def arms(self) -> tuple[str, ...]:
        """No arm: the marks need no legend."""
        return ()

    @property
    def alt(self) -> str:
        """The panel in words, for screen readers."""
        heading = f"Scatter chart, {self.title}, {self.value_label} against {self.position_label}."
        sentences = (
            f"{mark.label}: {format_points(mark.value)} at {mark.position:.1f}."
            for mark in self.marks
        )
        return " ".join((heading, *sentences))


@dataclass(frozen=True)
class Curve:
    """How one arm's values are spread: a height at each position."""

    arm: str
    positions: tuple[float, ...]
    heights: tuple[float, ...]
    median: float


@dataclass(frozen=True)
class CurvePanel:
    """Distributions over one another."""

    title: str
    position_label: str
    value_label: str
    curves: tuple[Curve, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms shown, in their order."""
        return tuple(curve.arm for curve in self.curves)

    @property
    def alt(self) -> str:
        """The panel in words: the middle of each distribution."""
        heading = f"Distributions, {self.title}, of the {self.position_label}."
        middles = (f"{names.label(c.arm)}: median {c.median:.1f}." for c in self.curves)
        return " ".join((heading, *middles))


@dataclass(frozen=True)
class ModelsPanel:
    """A row of dots for each arm, one for each of its models."""

    title: str
    position_label: str
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    value_label: str = ""

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms shown, in their order."""
        return tuple(arm for arm, _ in self.rows)

    @property
    def alt(self) -> str:
        """The panel in words: where each row begins and ends."""
        heading = f"Dot chart, {self.title}, {self.position_label}."
        rows = (f"{names.label(arm)}: {min(v):.2f} to {max(v):.2f}." for arm, v in self.rows)
        return " ".join((heading, *rows))


@dataclass(frozen=True)
class Dot:
    """One arm's value, a difference of shares."""

    label: str
    look: str  # key in the palette
    value: Estimate


@dataclass(frozen=True)
class DotPanel:
    """A difference for each arm, beside a line at zero; each has its name instead of a legend."""

    title: str
    value_label: str
    dots: tuple[Dot, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """No arm: the rows need no legend."""
        return ()

    @property
    def alt(self) -> str:
        """The panel in words, for screen readers."""
        sentences = (f"{dot.label}: {format_points(dot.value)}." for dot in self.dots)
        return " ".join((f"Dot chart, {self.title}, {self.value_label}.", *sentences))


Panel = BarPanel | LinePanel | ScatterPanel | CurvePanel | ModelsPanel | DotPanel


@dataclass(frozen=True)
class Plot:
    """One figure: rows of panels under a title, with a caption."""

    slug: str
    title: str
    caption: str
    rows: tuple[tuple[Panel, ...], ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, row by row."""
        return tuple(panel for row in self.rows for panel in row)

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms of all panels, in the order of their looks."""
        shown = {arm for panel in self.panels for arm in panel.arms}
        return tuple(arm for arm in LOOKS if arm in shown)
