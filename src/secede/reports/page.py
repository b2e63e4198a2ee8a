"""One self-contained HTML page: no scripts, no fonts, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from secede.reports import formats, names
from secede.reports.analysis import answers, paper
from secede.reports.analysis.statistics import measured
from secede.reports.analysis.verdict import Verdict, joint_headline, judge
from secede.reports.figures.palette import LOOKS, THEME, look_keys
from secede.reports.figures.plots import LinePanel, MarkPanel, Plot
from secede.reports.records.runs import History, Records, Run
from secede.reports.tables import methods as compared
from secede.reports.tables import overview
from secede.reports.tables.main import cost_table, main_table, membership_table
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
        """How many panels stand beside each other on a wide screen."""
        if self.is_wide:
            return 1
        rows = self.plot.rows
        return len(rows) if len(rows[0]) == 1 else len(rows[0])

    @property
    def has_lines(self) -> bool:
        """Whether its legend shows strokes instead of squares."""
        return isinstance(self.plot.panels[0], LinePanel)

    @property
    def is_wide(self) -> bool:
        """Whether each panel takes a line of its own."""
        return isinstance(self.plot.panels[0], MarkPanel)


@dataclass(frozen=True)
class Told:
    """What a method told of its start: a line of texts per seed, under its own words."""

    method: str
    keys: tuple[str, ...]
    lines: tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Section:
    """All that the page says about one run."""

    run: Run
    verdict: Verdict
    main: Table
    methods: Table
    costs: Table
    membership: Table

    @property
    def erased_by(self) -> str:
        """The judged method and what the table of methods says of it."""
        return names.method_line(self.run.erased)

    @property
    def has_ablations(self) -> bool:
        """Whether the climb stands beside methods that leave it out."""
        methods = self.run.config.methods
        return self.run.erased == names.PROJECTED_ASCENT and names.FINE_TUNE in methods

    @cached_property
    def looks(self) -> dict[str, str]:
        """The key of each arm's colour."""
        shown = look_keys([self.run.shown_as(arm) for arm in self.run.config.arms])
        return {arm: shown[self.run.shown_as(arm)] for arm in self.run.config.arms}

    @property
    def history(self) -> History | None:
        """What the server kept in the seed that kept most."""
        kept = [seed.history for seed in self.run.seeds if seed.history is not None]
        return max(kept, key=lambda history: history.bytes, default=None)

    @cached_property
    def told(self) -> tuple[Told, ...]:
        """What methods told of their start, besides projected ascent, which has its own table."""
        others = (arm for arm in self.run.config.methods if arm != names.PROJECTED_ASCENT)
        return tuple(told for arm in others if (told := _told(self.run, arm)) is not None)

    @cached_property
    def environment(self) -> dict[str, str]:
        """Versions and device, joined where seeds differ."""
        keys = dict.fromkeys(key for seed in self.run.seeds for key in seed.environment)
        found = {key: [str(seed.environment.get(key)) for seed in self.run.seeds] for key in keys}
        return {key: ", ".join(dict.fromkeys(values)) for key, values in found.items()}

    @property
    def note(self) -> str:
        """What the intervals in this section cover."""
        last = self.run.last_round(names.RETRAIN)
        return measured(self.run, names.RETRAIN, last, names.CLEAN_ACCURACY).note


def sections(runs: Sequence[Run]) -> tuple[Section, ...]:
    """Return what the page says about each run."""
    return tuple(
        Section(
            run=run,
            verdict=judge(run),
            main=main_table(run),
            methods=compared.method_table(run),
            costs=cost_table(run, paper.levels(run)),
            membership=membership_table(run),
        )
        for run in runs
    )


def render_page(
    records: Records, parts: Sequence[Section], drawings: Sequence[Drawing], *, version: str
) -> str:
    """Return the whole page."""
    environment = Environment(
        loader=PackageLoader("secede.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(mean=formats.mean, interval=formats.interval, plural=plural)
    return environment.get_template("page.html.j2").render(
        title=_title(parts),
        headline=joint_headline(
            [part.verdict for part in parts], [part.run.erased for part in parts]
        ),
        parts=parts,
        drawings=drawings,
        statements=paper.compare_with_text(records.runs),
        baseline=paper.BASELINE,
        unfinished=[folder.name for folder in records.unfinished],
        margins=answers,
        overview=overview.overview(records.runs),
        overview_note=overview.EXPLAINED,
        methods_note=compared.EXPLAINED,
        label=names.label,
        ended_by=ENDED_BY,
        theme=THEME,
        looks=LOOKS,
        version=version,
    )


def _told(run: Run, arm: str) -> Told | None:
    reports = [(seed.seed, seed.reports[arm]) for seed in run.seeds if arm in seed.reports]
    every = dict.fromkeys(key for _, report in reports for key in report)
    keys = tuple(key for key in every if any(_is_scalar(report.get(key)) for _, report in reports))
    if not keys:
        return None
    lines = ((seed, tuple(_scalar(report.get(key)) for key in keys)) for seed, report in reports)
    return Told(names.label(arm), tuple(key.replace("_", " ") for key in keys), tuple(lines))


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float)


def _scalar(value: object) -> str:
    if not _is_scalar(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _title(parts: Sequence[Section]) -> str:
    if len(parts) == 1:
        return parts[0].run.config.title
    return f"{len(parts)} runs: " + ", ".join(
        dict.fromkeys(names.SCENARIOS[part.run.config.scenario].lower() for part in parts)
    )
