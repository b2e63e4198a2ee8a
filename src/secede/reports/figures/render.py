"""Draw plots with matplotlib as SVG and PNG files, and their panels as SVG inside a page.

The same records give the same bytes: no date, no random ids. On the page, colours follow the
reader's light or dark theme, and ids have the panel's prefix.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from secede.reports import names
from secede.reports.analysis import Estimate, Unit, format_number
from secede.reports.figures.distributions import draw_curves, draw_models
from secede.reports.figures.dots import dots_height, draw_dots
from secede.reports.figures.figure_data import (
    GRID,
    INK,
    LOOKS,
    PAPER,
    QUIET,
    THEME,
    BarPanel,
    CurvePanel,
    DotPanel,
    Line,
    LinePanel,
    ModelsPanel,
    Panel,
    Plot,
    ScatterPanel,
)
from secede.reports.figures.scatter import SCATTER_HEIGHT, SCATTER_WIDTH, draw_scatter

WIDTH, HEIGHT = 4.0, 2.9  # inches of one panel
LETTER, LINE = 0.1, 0.2  # inches of a letter of a title, and of each line after the first
HEADING = 0.62  # inches above the panels for title and legend
TITLE_ONLY = 0.36  # the same without a legend
DPI = 160
BAR = 0.78  # width of a bar; bars of a group stand one apart
GAP = 0.9  # free space between groups


@dataclass(frozen=True)
class RenderedPlot:
    """A plot as SVG and PNG files, and its panels as SVG for the page."""

    panels: tuple[str, ...]
    svg: bytes
    png: bytes


def render_plot(plot: Plot) -> RenderedPlot:
    """Render a plot as files and for the page."""
    panels = (panel_svg(p, f"{plot.slug}-{n}") for n, p in enumerate(plot.panels, start=1))
    return RenderedPlot(tuple(panels), plot_bytes(plot, "svg"), plot_bytes(plot, "png"))


def plot_bytes(plot: Plot, form: Literal["svg", "png"]) -> bytes:
    """Return a figure with title and legend as a file's content."""
    return _rendered(plot.slug, lambda: _figure(plot), form)


def panel_svg(panel: Panel, name: str) -> str:
    """Return one panel as SVG for a page; `name` must be unique there."""
    svg = _rendered(name, lambda: _single(panel), "svg").decode()
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    return _themed(_described(_own_ids(body, name), panel.alt))


def _rendered(salt: str, make: Callable[[], Figure], form: Literal["svg", "png"]) -> bytes:
    out = io.BytesIO()
    blank = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the user's matplotlibrc must not change a figure
        matplotlib.rcParams.update(_settings(salt))
        make().savefig(out, format=form, dpi=DPI, metadata=blank)
    return out.getvalue()


def _single(panel: Panel) -> Figure:
    figure = Figure(figsize=_inches(panel), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    draw(axes, panel)
    return figure


def _figure(plot: Plot) -> Figure:
    rows = plot.rows
    panel_width, panel_height = _inches(plot.panels[0])
    if len(rows[0]) == 1 and panel_width == WIDTH:  # one data set: its panels side by side
        rows = (tuple(row[0] for row in rows),)
    row_count, column_count = len(rows), max(len(row) for row in rows)
    title = textwrap.wrap(plot.title, int((column_count * panel_width - 0.24) / LETTER))
    more = LINE * (len(title) - 1)
    heading = (HEADING if plot.arms else TITLE_ONLY) + more
    height = row_count * panel_height + heading
    layout = ConstrainedLayoutEngine(
        rect=(0, 0, 1, 1 - heading / height), w_pad=0.1, h_pad=0.1, wspace=0.05, hspace=0.05
    )
    figure = Figure(figsize=(column_count * panel_width, height), layout=layout, facecolor=PAPER)
    grid = figure.subplots(row_count, column_count, squeeze=False)
    for axes_row, row in zip(grid, rows, strict=True):
        for axes, panel in zip(axes_row, row, strict=True):
            draw(axes, panel)
    left = 0.12 / (column_count * panel_width)
    figure.text(left, 1 - 0.12 / height, "\n".join(title), fontsize=12, fontweight="bold", va="top")
    if not plot.arms:
        return figure
    figure.legend(
        handles=_handles(plot),
        loc="upper left",
        ncols=len(plot.arms),
        fontsize=9,
        bbox_to_anchor=(left, 1 - (0.38 + more) / height),
        borderaxespad=0.0,
        borderpad=0.0,
        handlelength=1.8,
        labelcolor=INK,
    )
    return figure


def _inches(panel: Panel) -> tuple[float, float]:
    if isinstance(panel, ScatterPanel):
        return SCATTER_WIDTH, SCATTER_HEIGHT
    return WIDTH, dots_height(panel) if isinstance(panel, DotPanel) else HEIGHT


def _handles(plot: Plot) -> list[Patch | Line2D]:
    if isinstance(plot.panels[0], BarPanel):
        return [Patch(color=LOOKS[arm].colour, label=names.label(arm)) for arm in plot.arms]
    return [
        Line2D(
            [],
            [],
            color=LOOKS[arm].colour,
            linewidth=LOOKS[arm].width,
            label=names.label(arm),
            linestyle=LOOKS[arm].linestyle,
        )
        for arm in plot.arms
    ]


def _own_ids(svg: str, name: str) -> str:
    for mark in ('id="', 'href="#', "url(#"):
        svg = svg.replace(mark, f"{mark}{name}-")
    return svg


def _described(svg: str, alt: str) -> str:
    size = re.search(r'viewBox="[^"]*"', svg)
    box = size.group() if size else ""
    text = escape(alt, quote=True)
    opening = (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {box} role="img" aria-label="{text}">'
    )
    return re.sub(r"<svg[^>]*>", lambda _: f"{opening}<title>{text}</title>", svg, count=1)


def _themed(svg: str) -> str:
    for variable, (colour, _) in THEME.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return svg


def draw(axes: Axes, panel: Panel) -> None:
    """Draw one panel."""
    axes.set_title(panel.title)
    axes.annotate(
        panel.vertical_label if isinstance(panel, LinePanel) else panel.value_label,
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
    elif isinstance(panel, CurvePanel):
        draw_curves(axes, panel)
    elif isinstance(panel, ModelsPanel):
        draw_models(axes, panel)
    elif isinstance(panel, DotPanel):
        draw_dots(axes, panel)
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


def _settings(salt: str) -> dict[Any, Any]:
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
