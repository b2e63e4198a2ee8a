"""Methods over all runs of a report: one row a method, one column a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from secede.reports import names
from secede.reports.formats import number
from secede.reports.records import Run
from secede.reports.statistics import measured
from secede.reports.table import markdown_rows

EXPLAINED = (
    "Usefulness / main score in percent, after 1 round of post-training → after the last. FedAvg "
    "and retraining: after their last round. A dash: not run there."
)


@dataclass(frozen=True)
class Heading:
    """A run, and which two scores its cells hold."""

    title: str
    scores: str


@dataclass(frozen=True)
class Overview:
    """Rows of texts under one heading per run."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [
            ("Method", *(f"{item.title} ({item.scores})" for item in self.headings)),
            ("---", *("---:" for _ in self.headings)),
            *((label, *cells) for label, cells in self.rows),
        ]
        return markdown_rows(lines)


def overview(runs: Sequence[Run]) -> Overview | None:
    """Return the table over all runs, or nothing if no two of them share a method."""
    counts = Counter(method for run in runs for method in run.config.methods)
    if not counts or max(counts.values()) < 2:
        return None
    headings = tuple(
        Heading(
            run.config.title,
            f"{names.SCORES[run.config.utility]} / {names.SCORES[run.config.main_probe]}",
        )
        for run in runs
    )
    arms = (names.FEDAVG, names.RETRAIN, *counts)
    rows = ((names.label(arm), tuple(_cell(run, arm) for run in runs)) for arm in arms)
    return Overview(headings, tuple(rows))


def _cell(run: Run, arm: str) -> str:
    if arm not in run.config.arms:
        return "–"
    last = run.last_round(arm)
    moments = {min(1, last), last} if arm in run.config.methods else {last}
    return " → ".join(_scores(run, arm, round) for round in sorted(moments))


def _scores(run: Run, arm: str, round: int) -> str:
    shown = (run.config.utility, run.config.main_probe)
    return " / ".join(number(measured(run, arm, round, score).mean, "share") for score in shown)
