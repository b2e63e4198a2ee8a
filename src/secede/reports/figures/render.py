"""Render plots as SVG and PNG files, and their panels as SVG inside a page.

The same records give the same bytes: no date, no random ids. On the page, colours follow the
reader's light or dark theme, and ids have the panel's prefix.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Literal

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from secede.reports import names
from secede.reports.figures.draw import draw
from secede.reports.figures.palette import INK, LOOKS, PAPER, THEME, settings
from secede.reports.figures.plot import BarPanel, Panel, Plot, ScatterPanel
from secede.reports.figures.scatter import SCATTER_HEIGHT, SCATTER_WIDTH

WIDTH, HEIGHT = 4.0, 2.9  # inches of one panel
LETTER, LINE = 0.1, 0.2  # inches of a letter of a title, and of each line after the first
HEADING = 0.62  # inches above the panels for title and legend
TITLE_ONLY = 0.36  # the same without a legend
DPI = 160


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
        matplotlib.rcParams.update(settings(salt))
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
    return (SCATTER_WIDTH, SCATTER_HEIGHT) if isinstance(panel, ScatterPanel) else (WIDTH, HEIGHT)


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
