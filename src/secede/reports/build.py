"""Write a report: one HTML page, its figures as SVG and PNG, its tables as CSV and Markdown.

The page is self-contained: no scripts, no fonts, nothing fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from secede.files import write_bytes, write_text
from secede.reports import names
from secede.reports.analysis import (
    Verdict,
    format_interval,
    format_mean,
    joint_headline,
    judge,
    margins,
    mean_score,
    paper,
    verdict,
)
from secede.reports.figures.catalogue import JUDGED, Moments, make_plots
from secede.reports.figures.figure_data import (
    LOOKS,
    THEME,
    CurvePanel,
    LinePanel,
    Plot,
    ScatterPanel,
    look_keys,
)
from secede.reports.figures.render import RenderedPlot, render_plot
from secede.reports.records.load import load_runs
from secede.reports.records.runs import History, Records, Run
from secede.reports.tables import methods, overview
from secede.reports.tables.scores import cost_table, membership_table, score_table
from secede.reports.tables.table import Table, csv_text, markdown, plain_markdown
from secede.text import plural

FIGURES_WORTH_A_PROCESS = 4  # fewer are drawn faster than a process starts

Progress = Callable[[int, int], None]  # figures done, figures in all

ENDED_BY = {
    "stop-distance": "far enough from the leaver's own state",
    "stop-accuracy": "the leaver's accuracy fell to the level asked for",
    "stop-loss": "the leaver's loss rose to that of guessing",
    "epochs": "all its epochs ran out",
}


@dataclass(frozen=True)
class Report:
    """Paths of a written report, and its runs, each with the verdict on it."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]
    verdicts: tuple[tuple[Run, Verdict], ...]
    unfinished: tuple[str, ...]


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    progress: Progress | None = None,
    processes: int = 1,
    moments: Moments = JUDGED,
) -> Report:
    """Read run folders, or folders of them, and write `out/index.html`, figures and tables.

    Each file is replaced as a whole, the page last. `progress` is called after each figure.
    With several `processes`, figures are drawn side by side; the calling script then needs
    `if __name__ == "__main__"`, as always with multiprocessing. `moments` are the rounds that
    figures show: the judged one, or the paper's.
    """
    records = load_runs(runs)
    sections = make_sections(records.runs)
    tables = _write_tables(sections, out / "tables")
    drawings: list[Drawing] = []
    figures: list[Path] = []
    plots = make_plots(records.runs, moments)
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
        verdicts=tuple((section.run, section.verdict) for section in sections),
        unfinished=_unfinished(sections, [folder.name for folder in records.unfinished]),
    )


@dataclass(frozen=True)
class Drawing:
    """A figure with its panels drawn for the page."""

    plot: Plot
    panels: tuple[Markup, ...]

    @property
    def columns(self) -> int:
        """Number of panels side by side on a wide screen."""
        if self.is_wide:
            return 1
        rows = self.plot.rows
        return len(rows) if len(rows[0]) == 1 else len(rows[0])

    @property
    def has_lines(self) -> bool:
        """Whether the legend shows strokes instead of squares."""
        return isinstance(self.plot.panels[0], LinePanel | CurvePanel)

    @property
    def is_wide(self) -> bool:
        """Whether each panel takes a row of its own."""
        return isinstance(self.plot.panels[0], ScatterPanel)


@dataclass(frozen=True)
class StartReport:
    """What a method reported of its start: one line of texts for each seed, under its own keys."""

    method: str
    keys: tuple[str, ...]
    lines: tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Section:
    """What the page says about one run."""

    run: Run
    verdict: Verdict
    scores: Table
    methods: Table
    costs: Table
    membership: Table

    @property
    def erased_by(self) -> str:
        """The judged method, with its summary from the table of methods."""
        return names.method_line(self.run.erased)

    @property
    def has_ablations(self) -> bool:
        """Whether the run compares projected ascent with methods that leave its local step out."""
        methods = self.run.config.methods
        return self.run.erased == names.PROJECTED_ASCENT and names.FINE_TUNE in methods

    @cached_property
    def looks(self) -> dict[str, str]:
        """The palette key of each arm."""
        keys = look_keys([self.run.shown_as(arm) for arm in self.run.config.arms])
        return {arm: keys[self.run.shown_as(arm)] for arm in self.run.config.arms}

    @property
    def history(self) -> History | None:
        """What the server kept in the seed with the largest history."""
        histories = [seed.history for seed in self.run.seeds if seed.history is not None]
        return max(histories, key=lambda history: history.bytes, default=None)

    @cached_property
    def start_reports(self) -> tuple[StartReport, ...]:
        """What methods reported of their start; projected ascent has a table of its own."""
        others = (arm for arm in self.run.config.methods if arm != names.PROJECTED_ASCENT)
        reports = (_start_report(self.run, arm) for arm in others)
        return tuple(report for report in reports if report is not None)

    @cached_property
    def environment(self) -> dict[str, str]:
        """Versions and device, joined where seeds differ."""
        keys = dict.fromkeys(key for seed in self.run.seeds for key in seed.environment)
        by_key = {key: [str(seed.environment.get(key)) for seed in self.run.seeds] for key in keys}
        return {key: ", ".join(dict.fromkeys(values)) for key, values in by_key.items()}

    @property
    def note(self) -> str:
        """What the intervals of this section cover."""
        last = self.run.last_round(names.RETRAIN)
        return mean_score(self.run, names.RETRAIN, last, names.CLEAN_ACCURACY).note


def make_sections(runs: Sequence[Run]) -> tuple[Section, ...]:
    """Return one section for each run."""
    return tuple(
        Section(
            run=run,
            verdict=judge(run),
            scores=score_table(run),
            methods=methods.method_table(run),
            costs=cost_table(run, paper.stated_levels(run)),
            membership=membership_table(run),
        )
        for run in runs
    )


def render_page(
    records: Records, sections: Sequence[Section], drawings: Sequence[Drawing], *, version: str
) -> str:
    """Return the page as HTML."""
    return page_template("page.html.j2").render(
        title=_title(sections),
        headline=joint_headline(
            [section.verdict for section in sections], [section.run.erased for section in sections]
        ),
        sections=sections,
        drawings=drawings,
        statements=paper.compare_with_text(records.runs),
        baseline=paper.BASELINE,
        unfinished=[folder.name for folder in records.unfinished],
        margins=margins,
        judged_round=verdict.JUDGED_ROUND,
        useful_points=verdict.USEFUL_POINTS,
        overview=overview.overview(records.runs),
        overview_note=overview.EXPLAINED,
        methods_note=methods.EXPLAINED,
        label=names.label,
        ended_by=ENDED_BY,
        theme=THEME,
        looks=LOOKS,
        version=version,
    )


@cache
def page_template(name: str) -> Template:
    """Return a page's template, which escapes what it is given."""
    environment = Environment(
        loader=PackageLoader("secede.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(mean=format_mean, interval=format_interval, plural=plural)
    return environment.get_template(name)


def _start_report(run: Run, arm: str) -> StartReport | None:
    reports = [(seed.seed, seed.reports[arm]) for seed in run.seeds if arm in seed.reports]
    all_keys = dict.fromkeys(key for _, report in reports for key in report)
    keys = tuple(
        key for key in all_keys if any(_is_scalar(report.get(key)) for _, report in reports)
    )
    if not keys:
        return None
    lines = ((seed, tuple(_scalar(report.get(key)) for key in keys)) for seed, report in reports)
    return StartReport(names.label(arm), tuple(key.replace("_", " ") for key in keys), tuple(lines))


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float)


def _scalar(value: object) -> str:
    if not _is_scalar(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _title(sections: Sequence[Section]) -> str:
    if len(sections) == 1:
        return sections[0].run.config.title
    return f"{len(sections)} runs: " + ", ".join(
        dict.fromkeys(names.SCENARIOS[section.run.config.scenario].lower() for section in sections)
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
        texts["paired.md"] = overview.further_table(runs)
        comparisons = (overview.against_retraining(runs), overview.nearer_table(runs))
        legend = f"{overview.EXPLAINED}\n"
        texts["comparison.md"] = "\n".join((*comparisons, all_runs.markdown, legend))
    for name, text in texts.items():
        write_text(folder / name, text)
    return tuple(folder / name for name in texts)


def _methods_text(sections: Sequence[Section]) -> str:
    texts = []
    for section in sections:
        title = plain_markdown(section.run.config.title)
        texts.append(f"## {title}\n\n{markdown(section.methods, 'Method')}")
        failed = section.run.failed.items()
        texts += [
            plain_markdown(f"{name} destroyed the model and is not compared: {why}.") + "\n"
            for name, why in failed
        ]
    return "\n".join([*texts, f"{methods.EXPLAINED}\n"])


def _unfinished(sections: Sequence[Section], folders: Sequence[str]) -> tuple[str, ...]:
    seeds = (
        f"{section.run.folder.name}/{seed}"
        for section in sections
        for seed in section.run.unfinished
    )
    return (*seeds, *folders)
