"""Figures as values: panels of bars, lines or marks, what they show and how to say it aloud."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from secede.reports import names
from secede.reports.analysis.formats import Unit, format_mean, format_points
from secede.reports.analysis.statistics import Estimate

# Of legends.
ORDER = (
    names.FEDAVG,
    names.RETRAIN,
    names.FINE_TUNE,
    names.REFERENCE,
    names.PROJECTED_ASCENT,
    names.ERASED,
)

WIDE_LOSS = 5.0  # a method that loses more points of usefulness than this
WIDE_MARGINS = 5.0  # a difference this many times the allowed one


@dataclass(frozen=True)
class BarGroup:
    """Bars that stand together, as (arm, value)."""

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
        """What the vertical axis shows."""
        return self.value_label

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms shown, in their order."""
        return tuple(dict.fromkeys(arm for group in self.groups for arm, _ in group.bars))

    @property
    def alt(self) -> str:
        """The panel in words."""
        return f"Bar chart, {self.title}, {self.value_label}. " + " ".join(self._said())

    def _said(self) -> Iterator[str]:
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
    """Values against positions, seen through a window of values.

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
        """What the vertical axis shows."""
        return self.position_label if self.transposed else self.value_label

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms shown, in their order."""
        level = (self.level[0],) if self.level else ()
        return (*level, *(line.arm for line in self.lines))

    @property
    def alt(self) -> str:
        """The panel in words: where each line begins and ends."""
        said = (
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
        return " ".join((heading, *said)) + level


@dataclass(frozen=True)
class Mark:
    """One method: what it is called, how it looks, and where it lies."""

    label: str
    look: str  # key in the palette
    position: float
    value: Estimate


@dataclass(frozen=True)
class ScatterPanel:
    """Differences from retraining, in points, of two scores; `allowed` transposed ones are shaded.

    Marks are labelled where they lie, so that there is no legend.
    """

    title: str
    position_label: str
    value_label: str
    marks: tuple[Mark, ...]
    allowed: tuple[float, float]

    @property
    def is_position_logarithmic(self) -> bool:
        """Whether the lower axis is logarithmic beyond a point."""
        return min(mark.position for mark in self.marks) < -WIDE_LOSS

    @property
    def is_difference_logarithmic(self) -> bool:
        """Whether the axis of differences is logarithmic beyond the allowed ones."""
        return any(abs(mark.value.mean) > WIDE_MARGINS * self.allowed[1] for mark in self.marks)

    @property
    def vertical_label(self) -> str:
        """What the vertical axis shows."""
        return self.value_label

    @property
    def arms(self) -> tuple[str, ...]:
        """No arm needs a legend."""
        return ()

    @property
    def alt(self) -> str:
        """The panel in words."""
        heading = f"Scatter chart, {self.title}, {self.value_label} against {self.position_label}."
        said = (
            f"{mark.label}: {format_points(mark.value)} at {mark.position:.1f}."
            for mark in self.marks
        )
        return " ".join((heading, *said))


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
