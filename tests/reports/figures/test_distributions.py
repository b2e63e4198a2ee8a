from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from secede.reports.figures.figure_data import LOOKS, Curve, CurvePanel, ModelsPanel
from secede.reports.figures.render import draw, panel_svg

CURVES = CurvePanel(
    "Samples",
    "margin",
    "share of samples",
    (
        Curve("erased", (-1.0, 0.0, 1.0), (0.2, 0.5, 0.3), 0.1),
        Curve("retrain-again", (-1.0, 0.0, 1.0), (0.1, 0.4, 0.5), 0.6),
    ),
)
DOTS = ModelsPanel("Samples", "mean margin", (("fedavg", (3.0, 3.5)), ("erased", (1.0, 2.0))))


@pytest.fixture
def axes() -> Axes:
    return Figure().subplots()


def test_a_curve_has_its_values_colour_and_dashes(axes: Axes) -> None:
    draw(axes, CURVES)
    first, second = axes.lines
    assert np.asarray(first.get_data()).tolist() == [[-1.0, 0.0, 1.0], [0.2, 0.5, 0.3]]
    assert to_hex(first.get_color()) == LOOKS["erased"].colour
    assert (first.get_linestyle(), second.get_linestyle()) == ("-", "--")
    assert axes.get_ylim()[0] == 0
    assert CURVES.alt.endswith("Erased: median 0.1. Retrained again: median 0.6.")


def test_each_row_has_a_dot_for_each_model_and_the_first_is_on_top(axes: Axes) -> None:
    draw(axes, DOTS)
    lower, upper = axes.collections
    assert np.asarray(lower.get_offsets()).tolist() == [[1.0, 0.0], [2.0, 0.0]]
    assert np.asarray(upper.get_offsets()).tolist() == [[3.0, 1.0], [3.5, 1.0]]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["Erased", "FedAvg"]
    assert DOTS.arms == ("fedavg", "erased")


def test_panels_are_drawn_for_the_page_with_their_words() -> None:
    for panel in (CURVES, DOTS):
        svg = panel_svg(panel, "x")
        assert panel.alt.split(".")[0] in svg
        assert "var(--arm-erased)" in svg
