"""All runs of a report in one table: methods' scores, and how far each is from retraining.

The first method is compared with each other one, paired by seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from secede.audit import benjamini_hochberg, holm
from secede.reports import names
from secede.reports.analysis import (
    CONFIDENCE,
    Estimate,
    compare_at_round,
    format_number,
    gap_to_retraining,
    mean_over_seeds,
    mean_score,
    paired_p_value,
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
    "the 95 % interval of the seeds' paired differences has one sign; in brackets, how many of "
    "these are sure after Benjamini and Hochberg's correction, and after Holm's, for all "
    "{asked} that the records ask"
)
FURTHER = (
    "How many points further from retraining than the first method each other one is, above or "
    "below it, with the 95 % interval of the seeds' paired differences (*: it has one sign; "
    "**: so after Benjamini and Hochberg's correction for all {asked} that the records ask; ***: "
    "after Holm's, too): after 1 round of post-training → after the last"
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


@dataclass(frozen=True)
class Paired:
    """How much further from retraining one method is than another, paired by seed, and how sure.

    `level` is 0 if the interval has both signs, 1 if it has one, 2 if it is so after Benjamini and
    Hochberg's correction for all questions asked together, and 3 if after Holm's, too; None where
    the methods ended alike.
    """

    difference: Estimate
    level: int | None

    @property
    def text(self) -> str:
        """The difference in points with its interval, and a star for each level."""
        mean = format_number(self.difference.mean, "difference")
        if self.difference.interval is None:
            return mean
        low, high = (format_number(end, "difference") for end in self.difference.interval)
        return f"{mean}{(self.level or 0) * '*'} ({low} to {high})"


Question = tuple[int, str, str, int | None]  # a run's place, two methods, after how many rounds


def pair_all(runs: Sequence[Run], asked: Sequence[Question]) -> dict[Question, Paired]:
    """Return the answer to each question, corrected for all of them.

    Where two methods ended alike in every seed there was nothing to ask.
    """
    gaps = {each: _further(runs[each[0]], *each[1:]) for each in asked}
    p_values = {each: paired_p_value(values) for each, values in gaps.items() if any(values)}
    raw = [*p_values.values()]
    corrected = zip(
        p_values, zip(raw, benjamini_hochberg(raw), holm(raw), strict=True), strict=True
    )
    levels = {each: sum(p < 1 - CONFIDENCE for p in values) for each, values in corrected}
    return {
        each: Paired(mean_over_seeds(values), levels.get(each)) for each, values in gaps.items()
    }


def count_asked(answers: Mapping[Question, Paired]) -> int:
    """Return how many questions were asked: those whose answer could differ."""
    return sum(answer.level is not None for answer in answers.values())


def _further(run: Run, arm: str, other: str, end: int | None) -> list[float]:
    pairs = zip(distances(run, arm, end), distances(run, other, end), strict=True)
    return [abs(a) - abs(b) for a, b in pairs]


def nearer_table(runs: Sequence[Run]) -> str:
    """Return a Markdown table that counts where the first method is nearer to retraining."""
    first, *others = dict.fromkeys(method for run in runs for method in run.config.methods)
    moments = ("after 1 round", "after the last")
    columns = [f"{m}: {what}" for m in moments for what in ("nearer", "surely", "surely further")]
    lines = [(f"{names.label(first)} against", *columns), ("---", *("---:" for _ in columns))]
    asked: list[Question] = [
        (place, first, other, end)
        for place, run in enumerate(runs)
        for other in others
        for end in ENDS
        if {first, other} <= {*run.config.methods}
    ]
    answers = pair_all(runs, asked)
    for other in others:
        shared = [run for run in runs if {first, other} <= {*run.config.methods}]
        cells = [
            cell
            for end in ENDS
            for cell in _nearer(
                [_is_nearer(run, first, other, end) for run in shared],
                [found for each, found in answers.items() if each[2:] == (other, end)],
            )
        ]
        lines.append((names.label(other), *cells))
    return f"**{NEARER.format(asked=count_asked(answers))}**\n\n{markdown_rows(lines)}"


def further_table(runs: Sequence[Run]) -> str:
    """Return a Markdown table of paired differences in distance from retraining."""
    asked = count_asked(pair_all(runs, _further_questions(runs, ENDS)))
    return f"**{FURTHER.format(asked=asked)}**\n\n{further_table_after(runs, ENDS)}"


def further_table_after(runs: Sequence[Run], ends: Sequence[int | None]) -> str:
    """Return that table without its heading, after the given rounds; None: after the last."""
    first = next(method for run in runs for method in run.config.methods)
    answers = pair_all(runs, _further_questions(runs, ends))
    places = {id(run): place for place, run in enumerate(runs)}

    def cell(run: Run, other: str) -> str:
        if first == other or first not in run.config.methods:
            return "–"
        return " → ".join(answers[places[id(run)], other, first, end].text for end in ends)

    return table_by_title(runs, cell)


def _further_questions(runs: Sequence[Run], ends: Sequence[int | None]) -> list[Question]:
    first = next(method for run in runs for method in run.config.methods)
    return [
        (place, other, first, end)
        for place, run in enumerate(runs)
        for other in run.config.methods
        for end in ends
        if other != first and first in run.config.methods
    ]


def _nearer(is_nearer: Sequence[bool], answers: Sequence[Paired]) -> tuple[str, str, str]:
    """Return how often the first is nearer by the means, surely nearer, and surely further."""
    of = f"of {len(answers)}"
    nearer = [answer.level or 0 for answer in answers if answer.difference.mean < 0]
    further = [answer.level or 0 for answer in answers if answer.difference.mean > 0]
    return f"{sum(is_nearer)} {of}", f"{_sure(nearer)} {of}", f"{_sure(further)} {of}"


def _sure(levels: Sequence[int]) -> str:
    """Return how many are sure, and how many of them after each correction."""
    raw, less_false, none_false = (sum(level >= least for level in levels) for least in (1, 2, 3))
    return f"{raw} ({less_false}, {none_false})" if raw else "0"


def _is_nearer(run: Run, first: str, other: str, end: int | None) -> bool:
    means = [mean_over_seeds(distances(run, arm, end)).mean for arm in (first, other)]
    return abs(means[0]) < abs(means[1])


def distances(run: Run, arm: str, end: int | None) -> list[float]:
    """Return each seed's main score less retraining's after `end` rounds; None: after all."""
    last, probe = run.last_round(arm), run.config.main_probe
    retrained = run.last_scores(names.RETRAIN, probe)
    scores = run.scores(arm, last if end is None else min(end, last), probe)
    return [a.value - b.value for a, b in zip(scores, retrained, strict=True)]
