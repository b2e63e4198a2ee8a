"""The first method against each other one, paired by seed: which is nearer to retraining."""

from __future__ import annotations

from collections.abc import Sequence

from secede.reports import names
from secede.reports.analysis.formats import format_number
from secede.reports.analysis.statistics import Estimate, mean_over_seeds
from secede.reports.records.runs import Run
from secede.reports.tables.overview import table_by_title
from secede.reports.tables.table import markdown_rows

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
    retrained = run.scores(names.RETRAIN, run.last_round(names.RETRAIN), probe)
    scores = run.scores(arm, last if end is None else min(end, last), probe)
    return [a.value - b.value for a, b in zip(scores, retrained, strict=True)]
