"""The kinds of tables that are made of records, as Markdown, by the name that a page gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from scipy import stats

from benchmarks.archives import joined
from secede.audit import benjamini_hochberg, holm
from secede.reports import names
from secede.reports.analysis import verdict
from secede.reports.analysis.estimates import (
    CONFIDENCE,
    Estimate,
    format_estimate,
    format_interval,
    format_number,
    gap_to_retraining,
    mean_over_seeds,
    ratio,
)
from secede.reports.records.runs import Attack, Run
from secede.reports.tables import methods as compared
from secede.reports.tables import overview
from secede.reports.tables.table import markdown, markdown_rows

SHORT = {
    "EMNIST (47 classes, derived)": "EMNIST",
    "(tau ": "(τ ",
    "twice:Twice@free": "Second step (free)",
    "twice:Twice": "Second step",
}
ROUNDS = (1, 2, 5)  # of a course, before the last

PAIRED = "advantage less retraining's, paired by seed: after 1 round → after the last"
BESIDE = (
    *(
        f"after {end}: {said}"
        for end in ("1 round", "the last")
        for said in ("nearer", "surely", "surely further")
    ),
    "first round worth more",
    "surely more",
    "surely less",
)

VERDICTS = (
    "",
    "forgotten",
    "main score, points from retraining",
    "loss on the leaver's samples, times retraining's",
    "useful",
    "cheaper",
    "told apart from retraining",
    "training had converged",
)

Rows = list[tuple[str, ...]]


def _scores(runs: Sequence[Run], columns: Sequence[str]) -> str:
    return _columns(_rows(overview.against_retraining(runs))[0], columns)


def _worth(runs: Sequence[Run], columns: Sequence[str]) -> str:
    return _columns(_rows(overview.against_retraining(runs))[1], columns)


def _further(runs: Sequence[Run], columns: Sequence[str]) -> str:
    return _columns(_rows(overview.further_table(runs))[0], columns)


def _course(runs: Sequence[Run], shown: Sequence[str]) -> str:
    """Return a row a method: points from retraining after some rounds, an experiment a column.

    Retraining itself, from scratch, comes last: how far it was after as many rounds.
    """
    begun = [with_methods(run, (*run.config.methods, names.RETRAIN)) for run in runs]
    corner = f"after {', '.join(map(str, ROUNDS))} rounds and the last"
    return _turned(_rows(overview.table_by_title(begun, _points))[0], shown, corner)


def with_methods(run: Run, methods: Sequence[str]) -> Run:
    """Return a run as if it had been of these methods."""
    return replace(run, config=replace(run.config, methods=tuple(methods)))


def _points(run: Run, arm: str) -> str:
    # Retraining has had more rounds in the end; here it is asked after as many.
    last = run.last_round(run.erased if arm == names.RETRAIN else arm)
    ends = [*(end for end in ROUNDS if end < last), last]
    gaps = (gap_to_retraining(run, arm, end, run.config.main_probe) for end in ends)
    return " → ".join(format_number(gap.mean, "difference") for gap in gaps)


def _apart(runs: Sequence[Run], shown: Sequence[str]) -> str:
    return _turned(_rows(overview.further_table(runs))[0], shown)


def _midway(runs: Sequence[Run], shown: Sequence[str]) -> str:
    """Return the same after those rounds of a course that are neither the first nor the last."""
    return _turned(_rows(overview.further_table_after(runs, ROUNDS[1:]))[0], shown)


def _between(runs: Sequence[Run], shown: Sequence[str]) -> str:
    """Return how much further from retraining than the first method shown the others are."""
    labels = {names.label(m): m for run in runs for m in run.config.methods}
    chosen = [labels[_known(name, [*labels])] for name in shown]
    both = [with_methods(run, chosen) for run in runs if {*chosen} <= {*run.config.methods}]
    return _columns(_rows(overview.further_table(both))[0], shown[1:])


def _valued(runs: Sequence[Run], shown: Sequence[str]) -> str:
    return _turned(_rows(overview.against_retraining(runs))[1], shown)


def _nearer(runs: Sequence[Run], others: Sequence[str]) -> str:
    heading, line, *rows = _rows(overview.nearer_table(runs))[0]
    return markdown_rows([heading, line, *_named(rows, others)])


def _cells(runs: Sequence[Run], columns: Sequence[str]) -> str:
    """Return a row an experiment: what is useful / what is left, before, retrained and after."""
    drawn = overview.overview(runs)
    assert drawn is not None
    table = dict(drawn.rows)
    rows = [
        (heading.title, *(table[column][number] for column in columns))
        for number, heading in enumerate(drawn.headings)
    ]
    return markdown_rows([("", *columns), ("---", *("---:" for _ in columns)), *rows])


def _every(runs: Sequence[Run], columns: Sequence[str]) -> str:
    """Return each experiment's methods with every score; all columns, whatever is chosen."""
    tables = ((run.config.title, compared.method_table(run)) for run in runs)
    return "\n".join(f"## {title}\n\n{markdown(table, 'Method')}" for title, table in tables)


def _members(runs: Sequence[Run], columns: Sequence[str]) -> str:
    """Return each attack's share of the leaver's samples called members, and its advantage."""
    heading = ("", "attack", "FedAvg", "Retrained", "after 1 round", "after the last", PAIRED)
    rows = [heading, ("---", "---", *("---:" for _ in heading[2:]))]
    for run, attack in ((run, attack) for run in runs for attack in names.ATTACKS):
        last = [(arm, run.last_round(arm)) for arm in (names.FEDAVG, names.RETRAIN, run.erased)]
        models = (*last[:2], (run.erased, 1), last[2])
        found = [[seed.membership[model][attack] for seed in run.seeds] for model in models]
        _, retrained, *erased = ([one.advantage for one in model] for model in found)
        paired_by_seed = " → ".join(_difference(model, retrained) for model in erased)
        called = (*map(_called, found), paired_by_seed)
        rows.append((run.config.title, names.ATTACKS[attack], *called))
    return markdown_rows(rows)


def _difference(here: Sequence[float], there: Sequence[float]) -> str:
    found = mean_over_seeds([one - other for one, other in zip(here, there, strict=True)])
    ends = "" if found.interval is None else format_interval(found, "difference")
    return format_number(found.mean, "difference") + (f" ({ends})" if ends else "")


def _seeds(runs: Sequence[Run], columns: Sequence[str]) -> str:
    """Return each seed's points from retraining, and the rounds that its first round is worth."""
    count = len(runs[0].seeds)
    rows = [("", *(f"seed {place}" for place in range(count))), ("---", *["---:"] * count)]
    for run in runs:
        ends = [overview.distances(run, run.erased, end) for end in overview.ENDS]
        gaps = (
            tuple(format_number(end, "difference") for end in pair)
            for pair in zip(*ends, strict=True)
        )
        by_seed = (replace(run, seeds=(seed,)) for seed in run.seeds)
        rounds = (compared.retraining_rounds(one, one.erased, 1) for one in by_seed)
        worth = ("never" if r is None else format_number(r.mean, "rounds") for r in rounds)
        cells = (f"{a} → {b}, {c}" for (a, b), c in zip(gaps, worth, strict=True))
        rows.append((run.config.title, *cells))
    return markdown_rows(rows)


def _known_still(runs: Sequence[Run], columns: Sequence[str]) -> str:
    """Return, of leavers that planted nothing, what is known of their samples beyond retraining."""
    heading = ("after 1 round → 2 rounds → the last, paired by seed", *columns)
    rows = [heading, ("---", *("---:" for _ in columns))]
    for run in (run for run in runs if run.config.scenario == "clean"):
        arms = {names.label(arm): arm for arm in run.config.methods}
        retrained = (names.RETRAIN, run.last_round(names.RETRAIN))
        for score in (names.LEAVER_ACCURACY, names.HOLDOUT_ACCURACY, None):
            what = "the first less the second" if score is None else names.SCORES[score]
            base = _known_of(run, retrained, score)
            cells = [
                " → ".join(
                    _difference(_known_of(run, (arms[name], end), score), base)
                    for end in (1, 2, run.last_round(arms[name]))
                )
                for name in columns
            ]
            rows.append((f"{run.config.title}: {what}", *cells))
        losses = (" → ".join(_loss_ratios(run, arms[name], retrained)) for name in columns)
        rows.append((f"{run.config.title}: {names.SCORES[names.LEAVER_LOSS]}, times", *losses))
    return markdown_rows(rows)


def _loss_ratios(run: Run, arm: str, retrained: tuple[str, int]) -> Iterator[str]:
    for end in (1, 2, run.last_round(arm)):
        pairs = zip(
            _known_of(run, (arm, end), names.LEAVER_LOSS),
            _known_of(run, retrained, names.LEAVER_LOSS),
            strict=True,
        )
        found = mean_over_seeds([one / other for one, other in pairs])
        yield f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def _known_of(run: Run, model: tuple[str, int], score: str | None) -> list[float]:
    if score is None:
        both = (
            _known_of(run, model, one) for one in (names.LEAVER_ACCURACY, names.HOLDOUT_ACCURACY)
        )
        return [own - other for own, other in zip(*both, strict=True)]
    return [found.value for found in run.scores(*model, score)]


def _beside(runs: Sequence[Run], others: Sequence[str]) -> str:
    """Return how the judged method stands beside other records' methods: nothing is overview."""
    here = {run.config.title: run for run in runs}
    pairs = [(here[run.config.title], run) for run in joined(*others) if run.config.title in here]
    heading = (f"{names.label(runs[0].erased)} against", *BESIDE)
    rows = [heading, ("---", *("---:" for _ in BESIDE))]
    methods = pairs[0][1].config.methods
    asked = [[[*_stands(*pair, method)] for pair in pairs] for method in methods]
    found = iter(_levels([each for method in asked for pair in method for each in pair]))
    for method, answers in zip(methods, asked, strict=True):
        levels = [[next(found) for _ in pair] for pair in answers]
        cells = (_counted(column) for column in zip(*levels, strict=True))
        rows.append((names.label(method), *(f"{cell} of {len(pairs)}" for cell in cells)))
    return markdown_rows(rows)


Stand = tuple[bool, float | None]  # the answer, and a p value where it is a sure one


def _levels(answers: Sequence[Stand]) -> list[tuple[int, bool]]:
    """Return 0 for no, 1 for yes, 2 and 3 for one that is sure after each correction.

    Beside it stands whether the question has corrections at all.
    """
    p_values = [p for _, p in answers if p is not None]
    corrected = iter(zip(benjamini_hochberg(p_values), holm(p_values), strict=True))
    levels = list[tuple[int, bool]]()
    for holds, p in answers:
        more = () if p is None else next(corrected)
        levels.append((holds + sum(holds and value < 1 - CONFIDENCE for value in more), bool(more)))
    return levels


def _counted(levels: Sequence[tuple[int, bool]]) -> str:
    """Return how many answers are yes and, of sure ones, how many after each correction."""
    raw, less_false, none_false = (sum(level >= n for level, _ in levels) for n in (1, 2, 3))
    return f"{raw} ({less_false}, {none_false})" if raw and levels[0][1] else str(raw)


def _stands(run: Run, other: Run, method: str) -> Iterator[Stand]:
    """Say what BESIDE asks of one experiment."""
    both = ((run, run.erased), (other, method))
    for end in overview.ENDS:
        ours, theirs = (overview.distances(one, arm, end) for one, arm in both)
        yield abs(mean_over_seeds(ours).mean) < abs(mean_over_seeds(theirs).mean), None
        here, there = (mean_over_seeds([*map(abs, found)]) for found in (ours, theirs))
        yield _below(here, there)
        yield _below(there, here)
    worth, less = (compared.retraining_rounds(one, arm, 1) for one, arm in both)
    assert worth is not None, f"{run.config.title}: never as useful"
    assert less is not None, f"{other.config.title}: {method} is never as useful"
    yield worth.mean > less.mean, None
    yield _below(less, worth)
    yield _below(worth, less)


def _verdicts(runs: Sequence[Run], columns: Sequence[str]) -> str:
    """Return what a report says of each experiment's first method, after the judged round."""
    rows = [VERDICTS, ("---", *("---:" for _ in VERDICTS[1:]))]
    for run in runs:
        said = verdict.judge(run)
        gap = gap_to_retraining(run, run.erased, said.round, run.config.main_probe)
        losses = (
            run.scores(run.erased, said.round, names.LEAVER_LOSS),
            run.last_scores(names.RETRAIN, names.LEAVER_LOSS),
        )
        numbers = (format_estimate(gap, "difference"), _times(ratio(*losses)))
        answers = [str(answer.reply) for answer in said.answers]
        assert said.told_apart is not None
        ended = "no" if said.not_converged else "yes"
        rows.append(
            (run.config.title, answers[0], *numbers, *answers[1:], said.told_apart.reply, ended)
        )
    return markdown_rows(rows)


def _times(value: Estimate) -> str:
    return format_estimate(value, "times", digits=2)


def _below(one: Estimate, other: Estimate) -> Stand:
    """Return whether the first interval ends before the second begins, and Welch's p value."""
    below = one.high is not None and other.low is not None and one.high < other.low
    return below, _welch(one, other)


def _welch(one: Estimate, other: Estimate) -> float:
    """Return the two-sided p value that two means are the same: each interval has its error."""
    errors = [_standard_error(each) for each in (one, other)]
    if not any(errors):
        return float(one.mean == other.mean)
    result = stats.ttest_ind_from_stats(
        one.mean,
        errors[0] * one.seeds**0.5,
        one.seeds,
        other.mean,
        errors[1] * other.seeds**0.5,
        other.seeds,
        equal_var=False,
    )
    return float(result.pvalue)


def _standard_error(mean: Estimate) -> float:
    if mean.low is None or mean.seeds < 2:
        return 0.0
    # The upper end may be clipped where a value has bounds; so may the lower, but not both.
    assert mean.high is not None
    half = max(mean.high - mean.mean, mean.mean - mean.low)
    return half / float(stats.t.ppf((1 + CONFIDENCE) / 2, mean.seeds - 1))


def _called(found: Sequence[Attack]) -> str:
    rate = mean_over_seeds([attack.member_rate.value for attack in found]).mean
    advantage = mean_over_seeds([attack.advantage for attack in found]).mean
    return f"{format_number(rate, 'share')} ({format_number(advantage, 'difference')})"


KINDS: Mapping[str, Callable[[Sequence[Run], Sequence[str]], str]] = {
    "scores": _scores,
    "worth": _worth,
    "further": _further,
    "nearer": _nearer,
    "cells": _cells,
    "every": _every,
    "members": _members,
    "seeds": _seeds,
    "known": _known_still,
    "beside": _beside,
    "course": _course,
    "apart": _apart,
    "midway": _midway,
    "valued": _valued,
    "between": _between,
    "verdicts": _verdicts,
}


def _rows(text: str) -> list[Rows]:
    """Read the Markdown tables of a text, names shortened."""
    found: list[Rows] = [[]]
    for line in short(text).splitlines():
        if line.startswith("|"):
            found[-1].append(tuple(cell.strip() for cell in line.strip().strip("|").split("|")))
        elif found[-1]:
            found.append([])
    return [rows for rows in found if rows]


def _columns(rows: Rows, chosen: Sequence[str]) -> str:
    """Return the chosen columns, without rows that have nothing in them."""
    there = rows[0][1:]
    kept = [0, *(1 + there.index(_known(name, there)) for name in chosen or there)]
    heading, line, *cut = (tuple(row[place] for place in kept) for row in rows)
    return markdown_rows([heading, line, *(row for row in cut if {*row[1:]} != {"–"})])


def _turned(rows: Rows, shown: Sequence[str], corner: str = "") -> str:
    """Return the table with rows and columns changed: a method a row, without those not there."""
    (_, *titles), *turned = [*zip(rows[0], *rows[2:], strict=True)]
    named = [row for row in _named(turned, shown) if {*row[1:]} != {"–"}]
    return markdown_rows([(corner, *titles), ("---", *("---:" for _ in titles)), *named])


def _named(rows: Rows, chosen: Sequence[str]) -> Iterator[tuple[str, ...]]:
    by_name = {row[0]: row for row in rows}
    for name in chosen or by_name:
        yield by_name[_known(name, list(by_name))]


def _known(name: str, there: Sequence[str]) -> str:
    if name not in there:
        raise SystemExit(f"nothing is called {name!r} there; expected one of: {', '.join(there)}")
    return name


def short(text: str) -> str:
    """Return a text with the names that tables have room for."""
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return text
