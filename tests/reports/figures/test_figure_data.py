from secede.reports.analysis.estimates import Estimate
from secede.reports.figures.figure_data import (
    BarGroup,
    BarPanel,
    Line,
    LinePanel,
    Mark,
    Plot,
    ScatterPanel,
)


def estimate(mean: float) -> Estimate:
    return Estimate(mean, None, None, 1, "none")


BARS = BarPanel(
    "MNIST",
    "attack success",
    "share",
    (BarGroup("N = 5", (("fedavg", estimate(0.98)), ("erased", estimate(0.01)))),),
)
LINES = LinePanel(
    title="MNIST",
    position_label="round",
    value_label="clean accuracy",
    unit="share",
    lines=(Line("retrain", (0.0, 1.0), (estimate(0.1), estimate(0.9))),),
    window=(0, 1),
    level=("fedavg", estimate(0.99)),
)


def test_bars_can_be_said_aloud() -> None:
    assert BARS.alt.replace("\u00a0", " ") == (
        "Bar chart, MNIST, attack success. N = 5: FedAvg 98.0 %, Erased 1.0 %."
    )


def test_lines_can_be_said_aloud() -> None:
    assert LINES.alt.replace("\u00a0", " ") == (
        "Line chart, MNIST, clean accuracy against round. Retrained from 10.0 % at 0 to 90.0 % "
        "at 1. FedAvg, for comparison: 99.0 %."
    )


def test_the_vertical_axis_is_named_by_what_stands_on_it() -> None:
    costs = LinePanel(
        "MNIST", "MB uploaded", "clean accuracy", "share", (), (0, 1), transposed=True
    )
    assert costs.vertical_label == "MB uploaded"
    assert LINES.vertical_label == "clean accuracy"
    assert BARS.value_label == "attack success"


def test_a_plots_arms_come_in_their_order() -> None:
    plot = Plot("slug", "Title", "Caption.", ((LINES,), (BARS,)))
    assert plot.panels == (LINES, BARS)
    assert plot.arms == ("fedavg", "retrain", "erased")


def marks(*values: tuple[float, float]) -> ScatterPanel:
    found = tuple(Mark(f"m{at:g}", "other-1", at, estimate(value)) for at, value in values)
    return ScatterPanel("MNIST", "MB uploaded", "attack success", found, (-0.03, 0.03))


def test_marks_can_be_said_aloud_and_need_no_legend() -> None:
    panel = marks((26.6, 0.9), (33.3, -0.004))
    assert panel.alt == (
        "Scatter chart, MNIST, attack success against MB uploaded. m26.6: +90.0 points at 26.6. "
        "m33.3: −0.4 points at 33.3."
    )
    assert Plot("slug", "Title", "Caption.", ((panel,),)).arms == ()


def test_axes_are_logarithmic_only_where_the_range_is_large() -> None:
    assert not marks((-5.0, 0.01), (0.5, 0.15)).is_position_logarithmic
    assert marks((-5.1, 0.01), (0.5, 0.15)).is_position_logarithmic
    assert not marks((10, 0.01), (50, 0.15)).is_difference_logarithmic
    assert marks((10, 0.01), (50, -0.2)).is_difference_logarithmic
