"""Draw a scatter panel: methods as marks, each with its name beside it, without overlaps.

Most methods forget nearly as well as retraining or hardly at all. Large differences lie on a
logarithmic scale, so that the better methods can be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation, Transform

from secede.reports import names
from secede.reports.figures.figure_data import INK, LOOKS, PAPER, QUIET, Mark, ScatterPanel

SCATTER_WIDTH, SCATTER_HEIGHT = 7.2, 4.3  # inches of a panel
_AXES = (72 * 5.65, 72 * 3.2)  # points of the panel's axes, nearly
_SIZE = 8.5  # of a name, in points
_TICKS = (3.0, 10.0, 30.0, 100.0)  # of the logarithmic part, in points
MARK_SPACING = 9.0  # between marks at the same place
LABEL_HEIGHT = 10.6

Position = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """The rectangle that a mark, an interval or a label covers."""

    left: float
    bottom: float
    right: float
    top: float

    def shifted(self, distance: float) -> Box:
        """Return the box shifted to the right."""
        return Box(self.left + distance, self.bottom, self.right + distance, self.top)

    def overlap(self, other: Box) -> float:
        """Return the area covered by both boxes."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    def overhang(self, frame: Position) -> float:
        """Return how far the box reaches out of a frame with its corner at the origin."""
        over = (-self.left, -self.bottom, self.right - frame[0], self.top - frame[1])
        return sum(max(end, 0.0) for end in over)


def draw_scatter(axes: Axes, panel: ScatterPanel) -> None:
    """Draw retraining's line, the allowed band, and each method with its interval and name."""
    retrained = LOOKS[names.RETRAIN]
    _positions(axes, panel)
    _differences(axes, panel)
    bottom, top = axes.get_ylim()
    low, high = (100 * end for end in panel.allowed)
    axes.axhspan(max(low, bottom), min(high, top), color=retrained.colour, alpha=0.1, linewidth=0)
    axes.axhline(0, color=retrained.colour, linewidth=1.4)
    axes.annotate(
        "retrained",
        (1, 0),
        (4, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        color=retrained.colour,
    )
    shifts = _shifts(axes, panel.marks)
    for mark, shift in zip(panel.marks, shifts, strict=True):
        _mark(axes, mark, shift)
    _names(axes, panel.marks, shifts)
    axes.grid(axis="both")


def _positions(axes: Axes, panel: ScatterPanel) -> None:
    places = [mark.position for mark in panel.marks]
    least, most = min(places), max(max(places), 0.0)
    if panel.is_position_logarithmic:
        axes.set_xscale("symlog", linthresh=1.0, linscale=0.6)
        ticks = [sign * tick for tick in (1.0, *_TICKS) for sign in (-1, 1)]
        axes.xaxis.set_major_locator(FixedLocator([0.0, *ticks]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(1.8 * least, most + 1.2)
    else:
        room = (most - least) or 1.0
        axes.set_xlim(least - 0.25 * room, most + 0.25 * room)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(_signed))
    axes.set_xlabel(panel.position_label)


def _differences(axes: Axes, panel: ScatterPanel) -> None:
    margin = 100 * panel.allowed[1]
    ends = [100 * end for mark in panel.marks for end in mark.value.interval or (mark.value.mean,)]
    ends += [100 * end for end in panel.allowed if math.isfinite(end)] + [0.0]
    least, most = min(ends), max(ends)
    if panel.is_difference_logarithmic:
        axes.set_yscale("symlog", linthresh=margin, linscale=0.6)
        ticks = [-tick for tick in _TICKS if -tick >= 2 * least] + [0.0, *_TICKS]
        axes.yaxis.set_major_locator(FixedLocator(ticks))
        axes.yaxis.set_minor_locator(NullLocator())
        low = 1.4 * least if least < -margin else least - 0.3 * margin
        axes.set_ylim(low, 1.4 * most if most > margin else most + 0.3 * margin)
    else:
        room = 0.07 * (most - least)
        axes.set_ylim(least - room, most + room)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(_signed))


def _signed(value: float, _: int | None) -> str:
    return f"{value:+g}".replace("-", "\u2212") if value else "0"


def _shifts(axes: Axes, marks: Sequence[Mark]) -> list[float]:
    """Return how far each mark shifts sideways, so that equal ones do not hide each other."""
    order = _downwards(axes, marks)
    free = shifts([_column(axes, marks[index]) for index in order])
    by_mark = dict(zip(order, free, strict=True))
    return [by_mark[index] for index in range(len(marks))]


def _downwards(axes: Axes, marks: Sequence[Mark]) -> list[int]:
    places = [_place(axes, mark.position, mark.value.mean) for mark in marks]
    return sorted(range(len(marks)), key=lambda index: (-places[index][1], places[index][0]))


def _column(axes: Axes, mark: Mark) -> Box:
    """Return the box of a mark and its interval."""
    ends = (*(mark.value.interval or ()), mark.value.mean)
    x, bottom = _place(axes, mark.position, min(ends))
    _, top = _place(axes, mark.position, max(ends))
    return Box(x - MARK_SPACING / 2, bottom - 4, x + MARK_SPACING / 2, top + 4)


def _beside(axes: Axes, shift: float) -> Transform:
    """Return the data's coordinates, shifted right by some points."""
    return axes.transData + ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)


def _mark(axes: Axes, mark: Mark, shift: float) -> None:
    look, judged = LOOKS[mark.look], mark.look == names.ERASED
    if mark.value.interval is not None:
        low, high = (100 * end for end in mark.value.interval)
        axes.plot(
            [mark.position] * 2,
            [low, high],
            color=look.colour,
            linewidth=1.2,
            zorder=3,
            transform=_beside(axes, shift),
        )
    axes.plot(
        [mark.position],
        [100 * mark.value.mean],
        marker=look.mark,
        color=look.colour,
        markersize=8.5 if judged else 6.5,
        markeredgewidth=0.8,
        markeredgecolor=PAPER,
        linestyle="none",
        zorder=5 if judged else 4,
        transform=_beside(axes, shift),
    )


def _names(axes: Axes, marks: Sequence[Mark], shifts: Sequence[float]) -> None:
    """Draw each name where it covers least; names far from their mark get a line."""
    _, line = _place(axes, marks[0].position, 0.0)
    obstacles = [Box(0, line - 1, _AXES[0], line + 1)]
    obstacles += [_column(axes, m).shifted(shift) for m, shift in zip(marks, shifts, strict=True)]
    for index in _downwards(axes, marks):
        mark, shift = marks[index], shifts[index]
        x, y = _place(axes, mark.position, mark.value.mean)
        place, width = (x + shift, y), _width(mark.label)
        offset = label_offset(place, width, obstacles, _AXES)
        obstacles.append(label_box(place, width, offset))
        _name(axes, mark, shift, width, offset)


def _name(axes: Axes, mark: Mark, shift: float, width: float, offset: Position) -> None:
    far = abs(offset[1]) > 0.6 * LABEL_HEIGHT
    side = 0.0 if offset[0] > 0 else 1.0 if offset[0] <= -width else 0.5
    line = {
        "arrowstyle": "-",
        "color": QUIET,
        "linewidth": 0.5,
        "relpos": (side, 0.5 if side != 0.5 else float(offset[1] < 0)),
        "shrinkA": 1,
        "shrinkB": 3,
    }
    text = axes.annotate(
        mark.label,
        (mark.position, 100 * mark.value.mean),
        offset,
        xycoords=_beside(axes, shift),
        textcoords="offset points",
        va="center",
        fontsize=_SIZE,
        fontweight="bold" if mark.look == names.ERASED else "normal",
        color=INK,
        zorder=6,
        arrowprops=line if far else None,
    )
    text.set_path_effects([withStroke(linewidth=2.2, foreground=PAPER)])
    text.set_in_layout(False)


def _place(axes: Axes, position: float, difference: float) -> Position:
    """Return a data point's place on the axes, in points from their corner."""
    x, y = (axes.transScale + axes.transLimits).transform((position, 100 * difference))
    return float(x) * _AXES[0], float(y) * _AXES[1]


def _width(text: str) -> float:
    path = TextPath((0, 0), text, prop=FontProperties(family="DejaVu Sans", size=_SIZE))
    return 1.08 * float(path.get_extents().width)


def shifts(columns: Sequence[Box]) -> list[float]:
    """Return how far each box must shift sideways to stand free, the first ones least."""
    chosen: list[float] = []
    for column in columns:
        placed = [other.shifted(shift) for other, shift in zip(columns, chosen, strict=False)]
        free = (
            shift
            for step in range(len(columns))
            for shift in (step * MARK_SPACING, -step * MARK_SPACING)
            if not any(column.shifted(shift).overlap(other) for other in placed)
        )
        chosen.append(next(free, 0.0))
    return chosen


def label_offset(
    place: Position, width: float, obstacles: Sequence[Box], frame: Position
) -> Position:
    """Return the offset of a label from its mark at which it covers least, the nearest of these."""

    def cost(offset: Position) -> float:
        box = label_box(place, width, offset)
        covered = sum(box.overlap(other) for other in obstacles)
        leftwards = 4.0 if offset[0] < 0 else 0.0
        return 5 * covered + 200 * box.overhang(frame) + abs(offset[1]) + leftwards

    return min(_candidate_offsets(width), key=cost)


def label_box(place: Position, width: float, offset: Position) -> Box:
    """Return the box of a label at an offset from its mark."""
    left, middle = place[0] + offset[0], place[1] + offset[1]
    return Box(left - 1, middle - LABEL_HEIGHT / 2, left + width + 1, middle + LABEL_HEIGHT / 2)


def _candidate_offsets(width: float) -> Iterator[Position]:
    """Yield offsets to the right, left, above and below, nearest first."""
    for step in range(17):
        for sign in (1, -1) if step else (1,):
            height = sign * step * LABEL_HEIGHT / 2
            gap = 8.0 if step < 3 else 14.0
            yield gap, height
            yield -gap - width, height
            if step > 1:
                yield -width / 2, height
