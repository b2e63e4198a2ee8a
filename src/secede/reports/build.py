"""Write a report: one HTML page, its figures as SVG and PNG, its tables as CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from markupsafe import Markup

from secede.files import write_bytes, write_text
from secede.reports.figures import plots
from secede.reports.load import load_runs
from secede.reports.page import Drawing, Section, render_page, sections
from secede.reports.plots import Plot
from secede.reports.render import panel_svg, plot_bytes
from secede.reports.table import csv_text
from secede.reports.verdict import Verdict

Progress = Callable[[int, int], None]  # figures done, figures in all


@dataclass(frozen=True)
class Report:
    """Where a report was written, and what it says of each run by name."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]
    verdicts: tuple[tuple[str, Verdict], ...]
    unfinished: tuple[str, ...]


def write_report(runs: Sequence[Path], out: Path, *, progress: Progress | None = None) -> Report:
    """Read run folders, or folders of them, and write `out/index.html`, figures and tables.

    Files are replaced one by one, each whole, and the page last. `progress` hears of figures.
    """
    records = load_runs(runs)
    parts = sections(records.runs)
    tables = _write_tables(parts, out / "tables")
    drawings: list[Drawing] = []
    figures: list[Path] = []
    wanted = plots(records.runs)
    for done, plot in enumerate(wanted, start=1):
        drawings.append(_draw(plot))
        figures.extend(_write_figure(plot, out / "figures"))
        if progress is not None:
            progress(done, len(wanted))
    page = out / "index.html"
    write_text(page, render_page(records, parts, drawings, version=version("secede")))
    return Report(
        page=page,
        figures=tuple(figures),
        tables=tables,
        verdicts=tuple((part.run.config.name, part.verdict) for part in parts),
        unfinished=_unfinished(parts, [folder.name for folder in records.unfinished]),
    )


def _draw(plot: Plot) -> Drawing:
    names = (f"{plot.slug}-{index}" for index in range(1, len(plot.panels) + 1))
    # The SVG is our own drawing, its texts escaped by matplotlib and by render.
    panels = (panel_svg(panel, name) for panel, name in zip(plot.panels, names, strict=True))
    return Drawing(plot, tuple(Markup(svg) for svg in panels))


def _write_figure(plot: Plot, folder: Path) -> tuple[Path, Path]:
    svg, png = folder / f"{plot.slug}.svg", folder / f"{plot.slug}.png"
    write_bytes(svg, plot_bytes(plot, "svg"))
    write_bytes(png, plot_bytes(plot, "png"))
    return svg, png


def _write_tables(parts: Sequence[Section], folder: Path) -> tuple[Path, ...]:
    contents = {
        "models.csv": {part.run.config.name: part.main for part in parts},
        "costs.csv": {part.run.config.name: part.costs for part in parts},
        "membership.csv": {part.run.config.name: part.membership for part in parts},
    }
    for name, tables in contents.items():
        write_text(folder / name, csv_text(tables))
    return tuple(folder / name for name in contents)


def _unfinished(parts: Sequence[Section], folders: Sequence[str]) -> tuple[str, ...]:
    seeds = (f"{part.run.folder.name}/{seed}" for part in parts for seed in part.run.unfinished)
    return (*seeds, *folders)
