"""One self-contained HTML page: no scripts, no fonts, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from secede.reports import answers, formats, names, paper
from secede.reports.palette import LOOKS, THEME
from secede.reports.plots import LinePanel, Plot
from secede.reports.records import Records, Run
from secede.reports.statistics import measured
from secede.reports.table import Table
from secede.reports.tables import cost_table, main_table, membership_table
from secede.reports.verdict import Verdict, joint_headline, judge

ENDED_BY = {
    "stop-distance": "far enough from the leaver's own state",
    "stop-accuracy": "the leaver's accuracy fell to the level asked for",
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
        rows = self.plot.rows
        return len(rows) if len(rows[0]) == 1 else len(rows[0])

    @property
    def has_lines(self) -> bool:
        """Whether its legend shows strokes instead of squares."""
        return isinstance(self.plot.panels[0], LinePanel)


@dataclass(frozen=True)
class Section:
    """All that the page says about one run."""

    run: Run
    verdict: Verdict
    main: Table
    costs: Table
    membership: Table

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
    environment.filters.update(mean=formats.mean, interval=formats.interval, plural=_plural)
    return environment.get_template("page.html.j2").render(
        title=_title(parts),
        headline=joint_headline([part.verdict for part in parts]),
        parts=parts,
        drawings=drawings,
        statements=paper.compare_with_text(records.runs),
        baseline=paper.BASELINE,
        unfinished=[folder.name for folder in records.unfinished],
        margins=answers,
        arms=names.ARMS,
        ended_by=ENDED_BY,
        theme=THEME,
        looks=LOOKS,
        version=version,
    )


def _title(parts: Sequence[Section]) -> str:
    if len(parts) == 1:
        return parts[0].run.config.title
    return f"{len(parts)} runs: " + ", ".join(
        dict.fromkeys(names.SCENARIOS[part.run.config.scenario].lower() for part in parts)
    )


def _plural(count: int, noun: str) -> str:
    return formats.plural(count, noun)
