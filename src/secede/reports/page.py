"""One self-contained HTML page: no scripts, no fonts, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from secede.reports import names
from secede.reports.analysis import formats, paper, questions
from secede.reports.analysis.statistics import mean_score
from secede.reports.analysis.verdict import Verdict, joint_headline, judge
from secede.reports.figures.palette import LOOKS, THEME, look_keys
from secede.reports.figures.plot import LinePanel, Plot, ScatterPanel
from secede.reports.records.runs import History, Records, Run
from secede.reports.tables import methods as compared
from secede.reports.tables import overview
from secede.reports.tables.scores import cost_table, membership_table, score_table
from secede.reports.tables.table import Table
from secede.text import plural

ENDED_BY = {
    "stop-distance": "far enough from the leaver's own state",
    "stop-accuracy": "the leaver's accuracy fell to the level asked for",
    "stop-loss": "the leaver's loss rose to that of guessing",
    "epochs": "all its epochs ran out",
}


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
        return isinstance(self.plot.panels[0], LinePanel)

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
            methods=compared.method_table(run),
            costs=cost_table(run, paper.stated_levels(run)),
            membership=membership_table(run),
        )
        for run in runs
    )


def render_page(
    records: Records, sections: Sequence[Section], drawings: Sequence[Drawing], *, version: str
) -> str:
    """Return the page as HTML."""
    environment = Environment(
        loader=PackageLoader("secede.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        mean=formats.format_mean, interval=formats.format_interval, plural=plural
    )
    return environment.get_template("page.html.j2").render(
        title=_title(sections),
        headline=joint_headline(
            [section.verdict for section in sections], [section.run.erased for section in sections]
        ),
        sections=sections,
        drawings=drawings,
        statements=paper.compare_with_text(records.runs),
        baseline=paper.BASELINE,
        unfinished=[folder.name for folder in records.unfinished],
        margins=questions,
        overview=overview.overview(records.runs),
        overview_note=overview.EXPLAINED,
        methods_note=compared.EXPLAINED,
        label=names.label,
        ended_by=ENDED_BY,
        theme=THEME,
        looks=LOOKS,
        version=version,
    )


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
