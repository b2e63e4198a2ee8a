"""All runs of a report in one table: methods' scores, and how far each is from retraining.

The first method is compared with each other one, paired by seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secede.reports import names
from secede.reports.analysis import (
    Estimate,
    compare_at_round,
    format_number,
    gap_to_retraining,
    mean_over_seeds,
    mean_score,
)
from secede.reports.records.runs import Run
from secede.reports.tables.methods import retraining_rounds
from secede.reports.tables.table import markdown_rows

GAPS = "Main score, points from retraining: after 1 round of post-training → after the last"
WORTH = (
    "Rounds of fair retraining that a method's first round of post-training is worth (≥: in some "
    "seeds retraining never reached that accuracy, which counts as all its rounds)"
)

NEARER = (
    "In how many experiments the first method is nearer to retraining than another one; surely: "
    "the 95 % interval of the seeds' paired differences has one sign"
)
FURTHER = (
    "How many points further from retraining than the first method each other one is, above or "
    "below it, with the 95 % interval of the seeds' paired differences (*: it has one sign): after "
    "1 round of post-training → after the last"
)
ENDS = (1, None)  # rounds of post-training; None: all of them

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
    last, probe = run.last_round(arm), run.config.main_probe
    ends = sorted({min(1, last), last})
    values = (gap_to_retraining(run, arm, round, probe) for round in ends)
    return " → ".join(format_number(value.mean, "difference") for value in values)


def _worth(run: Run, arm: str) -> str:
    if not run.last_round(arm):
        return "–"
    rounds = retraining_rounds(run, arm, 1)
    if rounds is None:
        return f"> {run.last_round(names.RETRAIN)}"
    never = compare_at_round(run, arm, 1).retrained_never  # in such seeds all its rounds count
    return f"{'≥ ' if never else ''}{format_number(rounds.mean, 'rounds')}"


def nearer_table(runs: Sequence[Run]) -> str:
    """Return a Markdown table that counts where the first method is nearer to retraining."""
    first, *others = dict.fromkeys(method for run in runs for method in run.config.methods)
    moments = ("after 1 round", "after the last")
    columns = [f"{m}: {what}" for m in moments for what in ("nearer", "surely", "surely further")]
    lines = [(f"{names.label(first)} against", *columns), ("---", *("---:" for _ in columns))]
    for other in others:
        shared = [run for run in runs if {first, other} <= {*run.config.methods}]
        counts = [count for end in ENDS for count in _nearer(shared, first, other, end)]
        lines.append((names.label(other), *(f"{count} of {len(shared)}" for count in counts)))
    return f"**{NEARER}**\n\n{markdown_rows(lines)}"


def further_table(runs: Sequence[Run]) -> str:
    """Return a Markdown table of paired differences in distance from retraining."""
    return f"**{FURTHER}**\n\n{further_table_after(runs, ENDS)}"


def further_table_after(runs: Sequence[Run], ends: Sequence[int | None]) -> str:
    """Return that table without its heading, after the given rounds; None: after the last."""
    first = next(method for run in runs for method in run.config.methods)

    def cell(run: Run, other: str) -> str:
        if first == other or first not in run.config.methods:
            return "–"
        return " → ".join(_difference_text(_difference(run, other, first, end)) for end in ends)

    return table_by_title(runs, cell)


def _difference_text(difference: Estimate) -> str:
    mean = format_number(difference.mean, "difference")
    if difference.interval is None:
        return mean
    low, high = (format_number(end, "difference") for end in difference.interval)
    star = "*" if difference.interval[0] > 0 or difference.interval[1] < 0 else ""
    return f"{mean}{star} ({low} to {high})"


def _nearer(runs: Sequence[Run], first: str, other: str, end: int | None) -> tuple[int, int, int]:
    """Count runs in which `first` is nearer by the means, surely nearer, and surely further."""
    nearer = surely_nearer = surely_further = 0
    for run in runs:
        means = [mean_over_seeds(distances(run, arm, end)).mean for arm in (first, other)]
        nearer += abs(means[0]) < abs(means[1])
        paired = _difference(run, first, other, end)
        if paired.interval is not None:
            surely_nearer += paired.interval[1] < 0
            surely_further += paired.interval[0] > 0
    return nearer, surely_nearer, surely_further


def _difference(run: Run, arm: str, other: str, end: int | None) -> Estimate:
    pairs = zip(distances(run, arm, end), distances(run, other, end), strict=True)
    return mean_over_seeds([abs(a) - abs(b) for a, b in pairs])


def distances(run: Run, arm: str, end: int | None) -> list[float]:
    """Return each seed's main score less retraining's after `end` rounds; None: after all."""
    last, probe = run.last_round(arm), run.config.main_probe
    retrained = run.last_scores(names.RETRAIN, probe)
    scores = run.scores(arm, last if end is None else min(end, last), probe)
    return [a.value - b.value for a, b in zip(scores, retrained, strict=True)]
