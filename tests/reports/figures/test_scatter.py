import math
from itertools import combinations

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from secede.reports.analysis.estimates import Estimate
from secede.reports.figures.figure_data import Mark, ScatterPanel
from secede.reports.figures.scatter import SCATTER_HEIGHT, SCATTER_WIDTH, draw_scatter


def panel(*marks: tuple[str, float, float], allowed: float = -0.03) -> ScatterPanel:
    found = tuple(
        Mark(name, "erased" if not index else f"other-{index % 8 + 1}", at, spread(value))
        for index, (name, at, value) in enumerate(marks)
    )
    return ScatterPanel("MNIST", "clean accuracy", "attack success", found, (allowed, 0.03))


def spread(value: float) -> Estimate:
    return Estimate(value, value - 0.005, value + 0.005, 3, "seeds")


CROWD = panel(
    *((f"Method number {index}", -0.3, 0.002 * index) for index in range(6)),
    *((f"Useless method {index}", -60.0, 0.3 + 0.01 * index) for index in range(3)),
    ("Fine-tuned", 0.1, 0.9),
)


@pytest.fixture
def axes() -> Axes:
    figure = Figure(figsize=(SCATTER_WIDTH, SCATTER_HEIGHT), layout="constrained")
    return figure.subplots()


def drawn(axes: Axes, shown: ScatterPanel) -> dict[str, Bbox]:
    """Return where the names lie once everything is laid out."""
    draw_scatter(axes, shown)
    lay_out(axes)
    names = {mark.label for mark in shown.marks}
    texts = [text for text in axes.texts if text.get_text() in names]
    # Of the text alone, without the line that leads to it.
    return {text.get_text(): Text.get_window_extent(text) for text in texts}


def lay_out(axes: Axes) -> None:
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()


def test_every_method_has_its_name_and_no_two_names_overlap(axes: Axes) -> None:
    boxes = drawn(axes, CROWD)
    assert set(boxes) == {mark.label for mark in CROWD.marks}
    for one, other in combinations(boxes, 2):
        assert not boxes[one].overlaps(boxes[other]), (one, other)


def test_names_stay_inside_the_axes(axes: Axes) -> None:
    boxes = drawn(axes, CROWD)
    frame = axes.get_window_extent()
    for name, box in boxes.items():
        assert frame.x0 <= box.x0, name
        assert box.x1 <= frame.x1, name
        assert frame.y0 <= box.y0, name
        assert box.y1 <= frame.y1, name


def test_methods_of_the_same_cost_and_score_stand_side_by_side(axes: Axes) -> None:
    shown = panel(("One", 30.0, 0.01), ("Other", 30.0, 0.01), ("Third", 60.0, 0.02))
    draw_scatter(axes, shown)
    lay_out(axes)
    dots = [line for line in axes.lines if line.get_linestyle() == "None"]
    assert len(dots) == 3
    points = [
        float(dot.get_transform().transform((at, 1.0))[0])
        for dot, at in zip(dots, (30.0, 30.0, 60.0), strict=True)
    ]
    assert abs(points[0] - points[1]) == pytest.approx(9 * axes.figure.dpi / 72)
    assert points[2] == pytest.approx(float(axes.transData.transform((60.0, 1.0))[0]))


def test_scales_are_plain_for_small_ranges_and_logarithmic_for_large(axes: Axes) -> None:
    draw_scatter(axes, panel(("One", -3.0, 0.01), ("Other", -0.4, 0.02)))
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
    wide = Figure().subplots()
    draw_scatter(wide, CROWD)
    assert (wide.get_xscale(), wide.get_yscale()) == ("symlog", "symlog")


def test_the_allowed_band_is_shaded_to_the_floor_where_less_is_forgotten_too(axes: Axes) -> None:
    draw_scatter(axes, panel(("One", 30.0, 0.01), ("Other", 40.0, 0.05)))
    band = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (band.y0, band.y1) == pytest.approx((-3, 3))
    open_below = Figure().subplots()
    draw_scatter(open_below, panel(("One", 30.0, 0.01), ("Other", 40.0, 0.05), allowed=-math.inf))
    band = open_below.patches[0].get_extents().transformed(open_below.transData.inverted())
    assert band.y0 == pytest.approx(open_below.get_ylim()[0])
    assert band.y1 == pytest.approx(3)


def test_retraining_is_named_at_its_line_and_the_judged_method_is_bold(axes: Axes) -> None:
    draw_scatter(axes, panel(("One", -3.0, 0.01), ("Other", -0.4, 0.02)))
    weights = {text.get_text(): text.get_fontweight() for text in axes.texts}
    assert weights == {"retrained": "normal", "One": "bold", "Other": "normal"}


def test_one_method_without_interval_can_be_drawn(axes: Axes) -> None:
    alone = Mark("Alone", "erased", 30.0, Estimate(0.0, None, None, 1, "none"))
    draw_scatter(axes, ScatterPanel("MNIST", "MB", "score", (alone,), (-0.03, 0.03)))
    low, high = axes.get_xlim()
    assert low < 30 < high
