"""Draw a panel onto matplotlib axes: bars with error bars, lines with intervals."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from secede.reports import names
from secede.reports.analysis.formats import Unit, format_number
from secede.reports.analysis.statistics import Estimate
from secede.reports.figures.palette import INK, LOOKS, PAPER, QUIET
from secede.reports.figures.plot import BarPanel, Line, LinePanel, Panel
from secede.reports.figures.scatter import draw_scatter

BAR = 0.78  # width of a bar; bars of a group stand one apart
GAP = 0.9  # free space between groups


def draw(axes: Axes, panel: Panel) -> None:
    """Draw one panel."""
    axes.set_title(panel.title)
    axes.annotate(
        panel.vertical_label,
        (0, 1),
        (0, 8),
        xycoords="axes fraction",
        textcoords="offset points",
        color=QUIET,
    )
    if isinstance(panel, BarPanel):
        _bars(axes, panel)
    elif isinstance(panel, LinePanel):
        _lines(axes, panel)
    else:
        draw_scatter(axes, panel)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)


def _bars(axes: Axes, panel: BarPanel) -> None:
    scale = _scale(panel.unit)
    ticks: list[tuple[float, str]] = []
    left = 0.0
    for group in panel.groups:
        for index, (arm, value) in enumerate(group.bars):
            _bar(axes, left + index, value, arm, panel.unit)
            if len(panel.groups) == 1:
                ticks.append((left + index, names.label(arm)))
        if len(panel.groups) > 1:
            ticks.append((left + (len(group.bars) - 1) / 2, group.label))
        left += len(group.bars) + GAP
    axes.set_xticks([at for at, _ in ticks], [label for _, label in ticks], color=INK)
    axes.set_xlim(-0.75, left - GAP - 0.25)
    highest = max((_top(value) for group in panel.groups for _, value in group.bars), default=1.0)
    axes.set_ylim(0, 108 if panel.unit == "share" else 1.18 * highest * scale or 1.0)
    _value_axis(axes, panel.unit, transposed=False)
    axes.grid(axis="y")


def _bar(axes: Axes, at: float, value: Estimate, arm: str, unit: Unit) -> None:
    scale = _scale(unit)
    height = value.mean * scale if math.isfinite(value.mean) else 0.0
    axes.bar(at, height, BAR, color=LOOKS[arm].colour, linewidth=0)
    if value.interval is not None:
        low, high = (end * scale for end in value.interval)
        axes.vlines(at, low, high, color=INK, linewidth=1.1)
    label = format_number(value.mean, unit)
    top = (at, max(_top(value) * scale, height))
    axes.annotate(
        label, top, (0, 3), textcoords="offset points", ha="center", va="bottom", fontsize=9
    )


def _lines(axes: Axes, panel: LinePanel) -> None:
    scale = _scale(panel.unit)
    if panel.level is not None:
        arm, value = panel.level
        look = LOOKS[arm]
        axes.axhline(
            value.mean * scale, color=look.colour, linewidth=look.width, linestyle=look.linestyle
        )
    for line in panel.lines:
        _line(axes, line, scale, panel.transposed)
    low, high = (end * scale for end in panel.window)
    if panel.transposed:
        axes.set_xlim(low, high)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(panel.value_label)
    else:
        axes.set_ylim(low, high)
        axes.set_xlabel(panel.position_label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        last = max(line.positions[-1] for line in panel.lines)
        axes.set_xlim(-0.02 * last, 1.02 * last or 1.0)
    _value_axis(axes, panel.unit, transposed=panel.transposed)
    axes.grid(axis="both")


def _line(axes: Axes, line: Line, scale: float, transposed: bool) -> None:
    look = LOOKS[line.arm]
    strong = not look.dashes
    means = [value.mean * scale for value in line.values]
    ends = [value.interval or (value.mean, value.mean) for value in line.values]
    low, high = ([scale * end[side] for end in ends] for side in (0, 1))
    fill = axes.fill_betweenx if transposed else axes.fill_between
    fill(line.positions, low, high, color=look.colour, alpha=0.16 if strong else 0.08, linewidth=0)
    x, y = (means, line.positions) if transposed else (line.positions, means)
    axes.plot(
        x,
        y,
        color=look.colour,
        linewidth=look.width,
        zorder=3 if strong else 2,
        linestyle=look.linestyle,
        marker="o" if strong else None,
        markersize=3.6,
        markeredgewidth=0.8,
        markeredgecolor=PAPER,
    )


def _value_axis(axes: Axes, unit: Unit, *, transposed: bool) -> None:
    axis = axes.xaxis if transposed else axes.yaxis
    if unit == "share":
        axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))


def _scale(unit: Unit) -> float:
    return 100.0 if unit == "share" else 1.0


def _top(value: Estimate) -> float:
    top = value.mean if value.high is None else value.high
    return top if math.isfinite(top) else 0.0
