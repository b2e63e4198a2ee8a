import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from secede.reports.analysis.estimates import Estimate
from secede.reports.figures.figure_data import LOOKS, BarGroup, BarPanel, Line, LinePanel
from secede.reports.figures.render import draw

THREE = (
    ("fedavg", Estimate(0.98, 0.97, 0.99, 3, "seeds")),
    ("retrain", Estimate(0.02, 0.01, 0.03, 3, "seeds")),
    ("erased", Estimate(0.03, None, None, 1, "none")),
)


@pytest.fixture
def axes() -> Axes:
    return Figure().subplots()


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def spans(axes: Axes) -> list[list[float]]:
    lines = [item for item in axes.collections if isinstance(item, LineCollection)]
    return [[point[1] for point in line.get_segments()[0]] for line in lines]


def data(axes: Axes) -> tuple[list[float], list[float]]:
    x, y = axes.lines[0].get_data()
    return list(np.asarray(x, dtype=float)), list(np.asarray(y, dtype=float))


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_bars_have_their_height_colour_interval_and_label(axes: Axes) -> None:
    draw(axes, BarPanel("MNIST", "attack success", "share", (BarGroup("N = 5", THREE),)))
    assert [bar.get_height() for bar in bars(axes)] == pytest.approx([98, 2, 3])
    colours = [to_hex(bar.get_facecolor()) for bar in axes.patches]
    assert colours == [LOOKS[arm].colour for arm, _ in THREE]
    assert spans(axes) == [pytest.approx([97, 99]), pytest.approx([1, 3])]
    assert texts(axes) == ["attack success", "98.0", "2.0", "3.0"]


def test_one_group_names_its_bars_and_several_name_themselves(axes: Axes) -> None:
    one, two = BarGroup("N = 5", THREE), BarGroup("N = 10", THREE)
    draw(axes, BarPanel("MNIST", "attack success", "share", (one,)))
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["FedAvg", "Retrained", "Erased"]
    other = Figure().subplots()
    draw(other, BarPanel("MNIST", "attack success", "share", (one, two)))
    assert [label.get_text() for label in other.get_xticklabels()] == ["N = 5", "N = 10"]


def test_a_bar_that_is_not_finite_is_drawn_as_nothing_and_says_so(axes: Axes) -> None:
    values = (("fedavg", Estimate(math.inf, None, None, 2, "none")),)
    draw(axes, BarPanel("MNIST", "loss", "loss", (BarGroup("N = 5", values),)))
    assert bars(axes)[0].get_height() == 0
    assert texts(axes)[-1] == "not finite"


def line_panel(transposed: bool) -> LinePanel:
    values = (Estimate(0.2, 0.1, 0.3, 3, "seeds"), Estimate(0.9, 0.8, 1.0, 3, "seeds"))
    return LinePanel(
        title="MNIST",
        position_label="round",
        value_label="clean accuracy",
        unit="share",
        lines=(Line("retrain", (0.0, 4.0), values),),
        window=(0.5, 1.0),
        transposed=transposed,
    )


def test_lines_run_over_positions_with_their_intervals_shaded(axes: Axes) -> None:
    draw(axes, line_panel(transposed=False))
    x, y = data(axes)
    assert x == [0, 4]
    assert y == pytest.approx([20, 90])
    shaded = axes.collections[0].get_paths()[0].get_extents()
    assert (shaded.y0, shaded.y1) == pytest.approx((10, 100))
    assert axes.get_ylim() == (50, 100)
    assert axes.get_xlabel() == "round"


def test_an_upright_panel_puts_values_on_the_horizontal_axis(axes: Axes) -> None:
    draw(axes, line_panel(transposed=True))
    x, y = data(axes)
    assert x == pytest.approx([20, 90])
    assert y == [0, 4]
    shaded = axes.collections[0].get_paths()[0].get_extents()
    assert (shaded.x0, shaded.x1) == pytest.approx((10, 100))
    assert axes.get_xlim() == (50, 100)
    assert (axes.get_xlabel(), texts(axes)[0]) == ("clean accuracy", "round")
