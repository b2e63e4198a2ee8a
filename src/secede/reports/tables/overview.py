"""All runs of a report in one table: methods' scores, and how far each is from retraining."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secede.reports import names
from secede.reports.analysis.costs import compare_at_round
from secede.reports.analysis.formats import format_number
from secede.reports.analysis.statistics import mean_score
from secede.reports.records.runs import Run
from secede.reports.tables.methods import gap_to_retraining, retraining_rounds
from secede.reports.tables.table import markdown_rows

GAPS = "Main score, points from retraining: after 1 round of post-training → after the last"
WORTH = (
    "Rounds of fair retraining that a method's first round of post-training is worth (≥: in some "
    "seeds retraining never got there, which counts as all its rounds)"
)

EXPLAINED = (
    "Usefulness / main score in percent, after 1 round of post-training → after the last. FedAvg "
    "and retraining: after their last round. A dash: not run there."
)


@dataclass(frozen=True)
class Heading:
    """A run's title, and the two scores in its cells."""

    title: str
    scores: str


@dataclass(frozen=True)
class Overview:
    """Rows of texts, with a heading for each run."""

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
    """Return the table over all runs; None if no two of them share a method."""
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
    return " / ".join(
        format_number(mean_score(run, arm, round, score).mean, "share") for score in shown
    )


def against_retraining(runs: Sequence[Run]) -> str:
    """Return two Markdown tables with a row for each experiment: gaps to retraining, rounds saved.

    Runs of the same title are one experiment with different methods.
    """
    return "\n".join(
        (
            f"**{GAPS}**\n\n{table_by_title(runs, _gaps)}",
            f"**{WORTH}**\n\n{table_by_title(runs, _worth)}",
        )
    )


def table_by_title(runs: Sequence[Run], cell: Callable[[Run, str], str]) -> str:
    """Return a Markdown table with a row for each experiment and a column for each method."""
    methods = tuple(dict.fromkeys(method for run in runs for method in run.config.methods))
    titles = dict.fromkeys(run.config.title for run in runs)
    cells = {
        (run.config.title, method): cell(run, method)
        for run in runs
        for method in run.config.methods
    }
    return markdown_rows(
        [
            ("", *map(names.label, methods)),
            ("---", *("---:" for _ in methods)),
            *((title, *(cells.get((title, m), "–") for m in methods)) for title in titles),
        ]
    )


def _gaps(run: Run, arm: str) -> str:
    last = run.last_round(arm)
    values = (gap_to_retraining(run)(arm, round) for round in sorted({min(1, last), last}))
    return " → ".join(format_number(value.mean, "difference") for value in values)


def _worth(run: Run, arm: str) -> str:
    if not run.last_round(arm):
        return "–"
    rounds = retraining_rounds(run, arm, 1)
    if rounds is None:
        return f"> {run.last_round(names.RETRAIN)}"
    never = compare_at_round(run, arm, 1).retrained_never  # in such seeds all its rounds count
    return f"{'≥ ' if never else ''}{format_number(rounds.mean, 'rounds')}"
