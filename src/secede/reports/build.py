"""Write a report: one HTML page, its figures as SVG and PNG, its tables as CSV and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

from markupsafe import Markup

from secede.files import write_bytes, write_text
from secede.reports.analysis.verdict import Verdict
from secede.reports.figures.catalogue import make_plots
from secede.reports.figures.plot import Plot
from secede.reports.figures.render import RenderedPlot, render_plot
from secede.reports.page import Drawing, Section, make_sections, render_page
from secede.reports.records.load import load_runs
from secede.reports.tables import methods, overview, paired
from secede.reports.tables.table import csv_text, markdown

FIGURES_WORTH_A_PROCESS = 4  # fewer are drawn faster than a process starts

Progress = Callable[[int, int], None]  # figures done, figures in all


@dataclass(frozen=True)
class Report:
    """Paths of a written report, and the verdict on each run by name."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]
    verdicts: tuple[tuple[str, Verdict], ...]
    unfinished: tuple[str, ...]


def write_report(
    runs: Sequence[Path], out: Path, *, progress: Progress | None = None, processes: int = 1
) -> Report:
    """Read run folders, or folders of them, and write `out/index.html`, figures and tables.

    Each file is replaced as a whole, the page last. `progress` is called after each figure.
    With several `processes`, figures are drawn side by side; the calling script then needs
    `if __name__ == "__main__"`, as always with multiprocessing.
    """
    records = load_runs(runs)
    sections = make_sections(records.runs)
    tables = _write_tables(sections, out / "tables")
    drawings: list[Drawing] = []
    figures: list[Path] = []
    plots = make_plots(records.runs)
    for done, (plot, rendered) in enumerate(_render(plots, processes), start=1):
        # The SVG is our own drawing; matplotlib and render.py escape its texts.
        drawings.append(Drawing(plot, tuple(Markup(svg) for svg in rendered.panels)))
        figures.extend(_write_figure(plot, rendered, out / "figures"))
        if progress is not None:
            progress(done, len(plots))
    page = out / "index.html"
    write_text(page, render_page(records, sections, drawings, version=version("secede")))
    return Report(
        page=page,
        figures=tuple(figures),
        tables=tables,
        verdicts=tuple((section.run.config.name, section.verdict) for section in sections),
        unfinished=_unfinished(sections, [folder.name for folder in records.unfinished]),
    )


def _render(plots: Sequence[Plot], processes: int) -> Iterator[tuple[Plot, RenderedPlot]]:
    """Yield each plot with its drawing, in order."""
    processes = min(processes, len(plots) // FIGURES_WORTH_A_PROCESS)
    if processes < 2:
        yield from ((plot, render_plot(plot)) for plot in plots)
        return
    # Spawned, not forked: the caller may have threads and a GPU.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from zip(plots, pool.map(render_plot, plots), strict=True)


def _write_figure(plot: Plot, rendered: RenderedPlot, folder: Path) -> tuple[Path, Path]:
    svg, png = folder / f"{plot.slug}.svg", folder / f"{plot.slug}.png"
    write_bytes(svg, rendered.svg)
    write_bytes(png, rendered.png)
    return svg, png


def _write_tables(sections: Sequence[Section], folder: Path) -> tuple[Path, ...]:
    contents = {
        "models.csv": {section.run.config.name: section.scores for section in sections},
        "costs.csv": {section.run.config.name: section.costs for section in sections},
        "membership.csv": {section.run.config.name: section.membership for section in sections},
        "methods.csv": {section.run.config.name: section.methods for section in sections},
    }
    texts = {name: csv_text(tables) for name, tables in contents.items()}
    texts["methods.md"] = _methods_text(sections)
    runs = [section.run for section in sections]
    all_runs = overview.overview(runs)
    if all_runs is not None:
        texts["paired.md"] = paired.further_table(runs)
        comparisons = (overview.against_retraining(runs), paired.nearer_table(runs))
        legend = f"{overview.EXPLAINED}\n"
        texts["comparison.md"] = "\n".join((*comparisons, all_runs.markdown, legend))
    for name, text in texts.items():
        write_text(folder / name, text)
    return tuple(folder / name for name in texts)


def _methods_text(sections: Sequence[Section]) -> str:
    texts = []
    for section in sections:
        texts.append(f"## {section.run.config.title}\n\n{markdown(section.methods, 'Method')}")
        failed = section.run.failed.items()
        texts += [f"{name} destroyed the model and is left out: {why}.\n" for name, why in failed]
    return "\n".join([*texts, f"{methods.EXPLAINED}\n"])


def _unfinished(sections: Sequence[Section], folders: Sequence[str]) -> tuple[str, ...]:
    seeds = (
        f"{section.run.folder.name}/{seed}"
        for section in sections
        for seed in section.run.unfinished
    )
    return (*seeds, *folders)
