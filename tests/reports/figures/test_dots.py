import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from secede.reports.analysis import Estimate
from secede.reports.figures.dots import ROW, dots_height, draw_dots
from secede.reports.figures.figure_data import Dot, DotPanel


def panel(*means: float, half: float = 0.01) -> DotPanel:
    dots = (
        Dot(f"Arm {place}", "retrain", Estimate(mean, mean - half, mean + half, 3, "seeds"))
        for place, mean in enumerate(means)
    )
    return DotPanel("MNIST", "Yeom's attack: advantage", tuple(dots))


def drawn(shown: DotPanel) -> Axes:
    axes = Figure().subplots()
    draw_dots(axes, shown)
    return axes


def test_a_line_at_zero_stands_in_the_middle_and_every_interval_fits() -> None:
    axes = drawn(panel(-0.08, 0.02))
    low, high = axes.get_xlim()
    assert low == -high
    assert high > 9  # 8 points and the interval's one
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [0, 0]


def test_each_arm_has_its_row_from_the_top_down() -> None:
    axes = drawn(panel(0.01, 0.02, 0.03))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Arm 0", "Arm 1", "Arm 2"]
    bottom, top = axes.get_ylim()
    assert bottom > top
    marks = np.concatenate([line.get_xydata() for line in axes.lines[1:]])
    assert marks == pytest.approx(np.array([(1, 0), (2, 1), (3, 2)]))


def test_noise_does_not_fill_the_panel() -> None:
    assert drawn(panel(0.0001, half=0.0002)).get_xlim()[1] >= 2


def test_a_panel_grows_with_its_rows() -> None:
    assert dots_height(panel(*[0.0] * 9)) - dots_height(panel(0.0)) == pytest.approx(8 * ROW)
