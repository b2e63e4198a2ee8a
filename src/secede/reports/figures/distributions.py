"""Draw distributions: curves over one another, and rows with a dot for each model."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from secede.reports import names
from secede.reports.figures.figure_data import INK, LOOKS, CurvePanel, ModelsPanel

_DOT = 26.0  # square points


def draw_curves(axes: Axes, panel: CurvePanel) -> None:
    """Draw each arm's distribution as a line, the area below it shaded."""
    for curve in panel.curves:
        look = LOOKS[curve.arm]
        shade = 0.05 if look.dashes else 0.12
        axes.fill_between(
            curve.positions, curve.heights, color=look.colour, alpha=shade, linewidth=0
        )
        axes.plot(
            curve.positions,
            curve.heights,
            color=look.colour,
            linewidth=look.width,
            linestyle=look.linestyle,
        )
    axes.set_ylim(bottom=0)
    axes.set_xlabel(panel.position_label)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
    axes.grid(axis="both")


def draw_models(axes: Axes, panel: ModelsPanel) -> None:
    """Draw a dot for each model, the first arm's row on top."""
    for row, (arm, values) in enumerate(reversed(panel.rows)):
        look = LOOKS[arm]
        axes.scatter(
            values, [row] * len(values), s=_DOT, color=look.colour, alpha=0.55, linewidths=0
        )
    labels = [names.label(arm) for arm in reversed(panel.arms)]
    axes.set_yticks(range(len(labels)), labels, color=INK)
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.set_xlabel(panel.position_label)
    axes.grid(axis="x")
