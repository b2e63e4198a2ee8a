"""The first method against each other one, paired by seed, by their distance from retraining."""

from __future__ import annotations

from collections.abc import Sequence

from secede.reports import names
from secede.reports.analysis.statistics import Estimate, over_seeds
from secede.reports.formats import number
from secede.reports.records.runs import Run
from secede.reports.tables.overview import by_title
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


def nearer(runs: Sequence[Run]) -> str:
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


def further(runs: Sequence[Run]) -> str:
    """Return a Markdown table of paired differences in distance from retraining."""
    return f"**{FURTHER}**\n\n{further_after(runs, ENDS)}"


def further_after(runs: Sequence[Run], ends: Sequence[int | None]) -> str:
    """Return that table, without its heading, after some rounds; None: after all of them."""
    first = next(method for run in runs for method in run.config.methods)

    def cell(run: Run, other: str) -> str:
        if first == other or first not in run.config.methods:
            return "–"
        return " → ".join(_told(_difference(run, other, first, end)) for end in ends)

    return by_title(runs, cell)


def _told(found: Estimate) -> str:
    mean = number(found.mean, "difference")
    if found.interval is None:
        return mean
    low, high = (number(end, "difference") for end in found.interval)
    sure = "*" if found.interval[0] > 0 or found.interval[1] < 0 else ""
    return f"{mean}{sure} ({low} to {high})"


def _nearer(runs: Sequence[Run], first: str, other: str, end: int | None) -> tuple[int, int, int]:
    """Count where `first` is nearer by the means, surely nearer, and surely further away."""
    found = [0, 0, 0]
    for run in runs:
        here, there = (distances(run, arm, end) for arm in (first, other))
        found[0] += abs(over_seeds(here).mean) < abs(over_seeds(there).mean)
        paired = _difference(run, first, other, end)
        if paired.interval is not None:
            found[1] += paired.interval[1] < 0
            found[2] += paired.interval[0] > 0
    return found[0], found[1], found[2]


def _difference(run: Run, arm: str, other: str, end: int | None) -> Estimate:
    pairs = zip(distances(run, arm, end), distances(run, other, end), strict=True)
    return over_seeds([abs(a) - abs(b) for a, b in pairs])


def distances(run: Run, arm: str, end: int | None) -> list[float]:
    """Return how far from retraining each seed's main score is, after `end` rounds; None: all."""
    last, probe = run.last_round(arm), run.config.main_probe
    retrained = run.scores(names.RETRAIN, run.last_round(names.RETRAIN), probe)
    found = run.scores(arm, last if end is None else min(end, last), probe)
    return [a.value - b.value for a, b in zip(found, retrained, strict=True)]
