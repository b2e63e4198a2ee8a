import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace

import matplotlib
import pytest

from secede.reports.figures.catalogue import make_plots
from secede.reports.figures.figure_data import Plot
from secede.reports.figures.render import panel_svg, plot_bytes
from secede.reports.records.runs import Run


@pytest.fixture
def plot(make_run: Callable[..., Run]) -> Plot:
    found = make_plots([make_run(seeds=(0, 1), rounds=3, post_rounds=2)])
    return next(plot for plot in found if plot.slug == "backdoor-rounds-n5")


@pytest.fixture
def methods(make_run: Callable[..., Run]) -> Plot:
    others = ("projected-ascent", "fine-tune", "weight-negation", "orthogonal-descent")
    runs = [make_run(seeds=(0, 1), rounds=3, methods=others, data=d) for d in ("mnist", "cifar10")]
    return make_plots(runs)[-1]


def test_a_figure_is_the_same_bytes_every_time(plot: Plot) -> None:
    first = plot_bytes(plot, "svg")
    assert first == plot_bytes(plot, "svg")
    assert b"<dc:date>" not in first
    assert plot_bytes(plot, "png") == plot_bytes(plot, "png")


def test_a_readers_own_settings_change_nothing(plot: Plot) -> None:
    first = plot_bytes(plot, "svg")
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.grid": True}):
        assert plot_bytes(plot, "svg") == first
        assert matplotlib.rcParams["lines.linewidth"] == 9


def test_a_figure_needs_no_font_and_no_other_file(plot: Plot) -> None:
    svg = plot_bytes(plot, "svg").decode()
    assert "<text" not in svg
    assert "<image" not in svg
    assert all(link.startswith("#") for link in re.findall(r'xlink:href="([^"]*)"', svg))


def test_a_png_is_one_and_wide_enough_for_its_panels(plot: Plot) -> None:
    png = plot_bytes(plot, "png")
    assert png.startswith(b"\x89PNG\r\n")
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    assert (width, height) == (2 * 640, round((2.9 + 0.62) * 160))


def test_a_long_title_takes_a_second_line_above_the_panels(plot: Plot) -> None:
    png = plot_bytes(replace(plot, title=" ".join(["forgotten?"] * 9)), "png")
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    assert (width, height) == (2 * 640, round((2.9 + 0.62 + 0.2) * 160))


def test_a_panel_for_the_page_is_well_formed_described_and_themed(plot: Plot) -> None:
    panel = plot.panels[0]
    svg = panel_svg(panel, "mine")
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == panel.alt
    assert root.get("width") is None
    assert root.get("viewBox") == "0 0 288 208.8"
    assert "var(--arm-retrain)" in svg
    assert not re.search(r"#[0-9a-f]{6}", svg)
    assert "<style" not in svg
    assert "<metadata" not in svg


def test_ids_of_two_panels_never_meet_and_every_link_is_answered(plot: Plot) -> None:
    one, other = (panel_svg(plot.panels[0], name) for name in ("one", "other"))
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    links = re.findall(r'href="#([^"]+)"', one) + re.findall(r"url\(#([^)]+)\)", one)
    assert links
    assert set(links) <= ids[0]


def test_methods_of_several_runs_stand_below_each_other_without_a_legend(methods: Plot) -> None:
    png = plot_bytes(methods, "png")
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    assert (width, height) == (round(7.2 * 160), int((2 * 4.3 + 0.36) * 160))
    assert plot_bytes(methods, "svg") == plot_bytes(methods, "svg")


def test_the_panel_of_methods_is_themed_too(methods: Plot) -> None:
    svg = panel_svg(methods.panels[0], "mine")
    assert ET.fromstring(svg).get("viewBox") == "0 0 518.4 309.6"
    assert "var(--arm-other-1)" in svg
    assert not re.search(r"#[0-9a-f]{6}", svg)


def test_a_title_cannot_break_out_of_its_panel(make_run: Callable[..., Run]) -> None:
    run = make_run(seeds=(0,), data='own/"><script>.npz', name="mine", rounds=2, post_rounds=1)
    svg = panel_svg(make_plots([run])[0].panels[0], "mine")
    assert "<script" not in svg
    ET.fromstring(svg)
