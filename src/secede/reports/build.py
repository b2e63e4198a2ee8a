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
from secede.reports.analysis import paired
from secede.reports.analysis.verdict import Verdict
from secede.reports.figures.catalogue import plots
from secede.reports.figures.plots import Plot
from secede.reports.figures.render import Drawn, draw_plot
from secede.reports.page import Drawing, Section, render_page, sections
from secede.reports.records.load import load_runs
from secede.reports.tables import methods, overview
from secede.reports.tables.table import csv_text, markdown

FIGURES_WORTH_A_PROCESS = 4  # fewer are drawn sooner than a process starts

Progress = Callable[[int, int], None]  # figures done, figures in all


@dataclass(frozen=True)
class Report:
    """Where a report was written, and what it says of each run by name."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]
    verdicts: tuple[tuple[str, Verdict], ...]
    unfinished: tuple[str, ...]


def write_report(
    runs: Sequence[Path], out: Path, *, progress: Progress | None = None, processes: int = 1
) -> Report:
    """Read run folders, or folders of them, and write `out/index.html`, figures and tables.

    Files are replaced one by one, each whole, and the page last. `progress` hears of figures.
    More `processes` draw many figures side by side; a script that asks for them must be guarded
    by `if __name__ == "__main__"`, as always with multiprocessing.
    """
    records = load_runs(runs)
    parts = sections(records.runs)
    tables = _write_tables(parts, out / "tables")
    drawings: list[Drawing] = []
    figures: list[Path] = []
    wanted = plots(records.runs)
    for done, (plot, drawn) in enumerate(_drawn(wanted, processes), start=1):
        # The SVG is our own drawing, its texts escaped by matplotlib and by render.
        drawings.append(Drawing(plot, tuple(Markup(svg) for svg in drawn.panels)))
        figures.extend(_write_figure(plot, drawn, out / "figures"))
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


def _drawn(wanted: Sequence[Plot], processes: int) -> Iterator[tuple[Plot, Drawn]]:
    """Yield the plots with their drawings, in order."""
    processes = min(processes, len(wanted) // FIGURES_WORTH_A_PROCESS)
    if processes < 2:
        yield from ((plot, draw_plot(plot)) for plot in wanted)
        return
    # Not forked: the caller may have threads and a GPU.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from zip(wanted, pool.map(draw_plot, wanted), strict=True)


def _write_figure(plot: Plot, drawn: Drawn, folder: Path) -> tuple[Path, Path]:
    svg, png = folder / f"{plot.slug}.svg", folder / f"{plot.slug}.png"
    write_bytes(svg, drawn.svg)
    write_bytes(png, drawn.png)
    return svg, png


def _write_tables(parts: Sequence[Section], folder: Path) -> tuple[Path, ...]:
    contents = {
        "models.csv": {part.run.config.name: part.main for part in parts},
        "costs.csv": {part.run.config.name: part.costs for part in parts},
        "membership.csv": {part.run.config.name: part.membership for part in parts},
        "methods.csv": {part.run.config.name: part.methods for part in parts},
    }
    texts = {name: csv_text(tables) for name, tables in contents.items()}
    texts["methods.md"] = _methods_text(parts)
    runs = [part.run for part in parts]
    shared = overview.overview(runs)
    if shared is not None:
        texts["paired.md"] = paired.further(runs)
        ways = (overview.against_retraining(runs), paired.nearer(runs))
        texts["comparison.md"] = "\n".join((*ways, shared.markdown, f"{overview.EXPLAINED}\n"))
    for name, text in texts.items():
        write_text(folder / name, text)
    return tuple(folder / name for name in texts)


def _methods_text(parts: Sequence[Section]) -> str:
    found = []
    for part in parts:
        found.append(f"## {part.run.config.title}\n\n{markdown(part.methods, 'Method')}")
        failed = part.run.failed.items()
        found += [f"{name} destroyed the model and is left out: {why}.\n" for name, why in failed]
    return "\n".join([*found, f"{methods.EXPLAINED}\n"])


def _unfinished(parts: Sequence[Section], folders: Sequence[str]) -> tuple[str, ...]:
    seeds = (f"{part.run.folder.name}/{seed}" for part in parts for seed in part.run.unfinished)
    return (*seeds, *folders)
