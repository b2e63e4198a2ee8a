"""A figure as a value: panels of bars, lines or marks, with their text alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from secede.reports import names
from secede.reports.analysis.formats import Unit, format_mean, format_points
from secede.reports.analysis.statistics import Estimate

# The order of arms in legends.
ORDER = (
    names.FEDAVG,
    names.RETRAIN,
    names.FINE_TUNE,
    names.REFERENCE,
    names.PROJECTED_ASCENT,
    names.ERASED,
)

# Beyond these an axis is logarithmic.
WIDE_LOSS = 5.0  # points of usefulness lost
WIDE_MARGINS = 5.0  # a difference, as a multiple of the allowed one


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
    def vertical_label(self) -> str:
        """The label of the vertical axis."""
        return self.value_label

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
    def vertical_label(self) -> str:
        """The label of the vertical axis."""
        return self.value_label

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


Panel = BarPanel | LinePanel | ScatterPanel


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
        """The arms of all panels, in the order of `ORDER`."""
        shown = {arm for panel in self.panels for arm in panel.arms}
        return tuple(arm for arm in ORDER if arm in shown)
