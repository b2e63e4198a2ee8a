"""Draw a panel of differences: a row an arm, a dot with its interval, and a line at zero."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from secede.reports.figures.figure_data import INK, LOOKS, QUIET, Dot, DotPanel

ROW = 0.26  # inches of a row
ROOM = 1.05  # inches above and below the rows: title, label, axis
LEAST_POINTS = 2.0  # to each side of zero, so that noise does not fill the panel


def dots_height(panel: DotPanel) -> float:
    """Return the panel's height in inches."""
    return ROOM + ROW * len(panel.dots)


def draw_dots(axes: Axes, panel: DotPanel) -> None:
    """Draw each row's dot, interval and number, from the top down."""
    axes.axvline(0, color=INK, linewidth=1.2)
    for row, dot in enumerate(panel.dots):
        _dot(axes, row, dot)
    axes.set_yticks(range(len(panel.dots)), [dot.label for dot in panel.dots], color=INK)
    axes.set_ylim(len(panel.dots) - 0.4, -0.6)
    ends = [abs(100 * end) for dot in panel.dots for end in _ends(dot)]
    reach = 1.12 * max([*ends, LEAST_POINTS])
    axes.set_xlim(-reach, reach)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(_signed))
    axes.set_xlabel("points over guessing", color=QUIET)
    axes.grid(axis="x")


def _dot(axes: Axes, row: int, dot: Dot) -> None:
    look = LOOKS[dot.look]
    low, high = (100 * end for end in _ends(dot))
    axes.hlines(row, low, high, color=look.colour, linewidth=1.6, zorder=2)
    axes.plot(
        100 * dot.value.mean,
        row,
        color=look.colour,
        marker=look.mark,
        markersize=5.5,
        linestyle="none",
        zorder=3,
    )


def _ends(dot: Dot) -> tuple[float, float]:
    return dot.value.interval or (dot.value.mean, dot.value.mean)


def _signed(value: float, _: int | None) -> str:
    return f"{value:+g}".replace("-", "\u2212") if value else "0"
