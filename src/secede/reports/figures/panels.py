"""Panels of figures from the runs of one data set, as values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from secede.reports import names
from secede.reports.analysis import (
    MEGABYTE,
    Estimate,
    allowed_difference,
    difference,
    gap_to_retraining,
    mean_score,
    mean_share,
    score_unit,
)
from secede.reports.figures.figure_data import (
    BarGroup,
    BarPanel,
    Dot,
    DotPanel,
    Line,
    LinePanel,
    Mark,
    ScatterPanel,
    look_keys,
)
from secede.reports.records.runs import Run, Score

# Drawn round by round where a run has them, besides retraining and the judged method; more lines
# could not be told apart.
CURVES = (names.FINE_TUNE, names.REFERENCE, names.PROJECTED_ASCENT)

DISTINCT_LOOKS = 10  # most methods in one panel: there are few more looks


def bar_panel(title: str, runs: Sequence[Run], score: str, round: int) -> BarPanel:
    """Return FedAvg, retrained and erased for each number of clients."""
    groups = (
        BarGroup(
            f"N = {run.config.clients}",
            tuple(
                (run.shown_as(arm), mean_score(run, arm, _shown_round(run, arm, round), score))
                for arm in _barred(run)
            ),
        )
        for run in runs
    )
    return BarPanel(title, names.SCORES[score], score_unit(score), tuple(groups))


def attack_panel(title: str, run: Run, attack: str, round: int) -> DotPanel:
    """Return one membership attack's advantage on every arm that it was made on."""
    shown = (*run.config.trained, *methods_shown(run))
    looks = look_keys([run.shown_as(arm) for arm in shown])
    values = ((arm, _advantage(run, arm, round, attack)) for arm in shown)
    dots = (
        Dot(names.label(arm), looks[run.shown_as(arm)], value)
        for arm, value in values
        if value is not None
    )
    return DotPanel(title, f"{names.ATTACKS[attack]}'s attack: advantage", tuple(dots))


def _advantage(run: Run, arm: str, round: int, attack: str) -> Estimate | None:
    last = run.last_round(arm)
    attacks = run.attacks(arm, min(round, last) if arm in run.config.methods else last, attack)
    if len(attacks) < len(run.seeds):
        return None
    rates = [item.member_rate for item in attacks]
    false = [item.nonmember_accuracy for item in attacks]
    return difference(rates, [Score(1 - item.value, item.count) for item in false])


def communication_panel(title: str, run: Run) -> LinePanel:
    """Return megabytes uploaded against the best useful accuracy so far."""
    lines = tuple(_best_so_far(run, arm) for arm in (names.RETRAIN, run.erased))
    return LinePanel(
        title=title,
        position_label="MB uploaded",
        value_label=names.SCORES[run.config.utility],
        unit="share",
        lines=lines,
        window=_cost_window(lines),
        transposed=True,
    )


def rounds_panel(title: str, run: Run, score: str) -> LinePanel:
    """Return one score against rounds, with FedAvg's last value as a level."""
    arms = (*curves_beside(run), names.RETRAIN, run.erased)
    lines = tuple(_curve(run, arm, score) for arm in arms)
    last = run.last_round(names.FEDAVG)
    return LinePanel(
        title=title,
        position_label="round",
        value_label=names.SCORES[score],
        unit=score_unit(score),
        lines=lines,
        window=_window(lines, score),
        level=(names.FEDAVG, mean_score(run, names.FEDAVG, last, score)),
    )


def curves_beside(run: Run) -> tuple[str, ...]:
    """Return the methods that are drawn round by round besides the judged one."""
    return tuple(arm for arm in CURVES if arm in run.config.methods[1:])


def method_panel(title: str, run: Run, round: int) -> ScatterPanel:
    """Return methods after a round: how far probe and usefulness lie from retraining's."""
    probe, shown = run.config.main_probe, methods_shown(run)
    looks = look_keys([run.shown_as(arm) for arm in (names.FEDAVG, names.RETRAIN, *shown)])
    use = run.config.utility
    marks = []
    for arm in shown:
        at = min(round, run.last_round(arm))
        gap, loss = (gap_to_retraining(run, arm, at, score) for score in (probe, use))
        marks.append(Mark(names.label(arm), looks[run.shown_as(arm)], 100 * loss.mean, gap))
    return ScatterPanel(
        title=title,
        position_label=f"{names.SCORES[use]}: points from retraining",
        value_label=f"{names.SCORES[probe]}: points from retraining",
        marks=tuple(marks),
        allowed=allowed_difference(run),
    )


def methods_shown(run: Run) -> tuple[str, ...]:
    """Return the methods that a figure can tell apart; variants beyond them are left out."""
    variants = [arm for arm in run.config.methods if "@" in arm]
    room = max(0, DISTINCT_LOOKS - len(run.config.methods) + len(variants))
    return tuple(arm for arm in run.config.methods if arm not in variants[room:])


def _barred(run: Run) -> tuple[str, str, str]:
    return names.FEDAVG, names.RETRAIN, run.erased


def _shown_round(run: Run, arm: str, round: int) -> int:
    last = run.last_round(arm)
    return min(round, last) if arm == run.erased else last


def _curve(run: Run, arm: str, score: str) -> Line:
    rounds = range(run.last_round(arm) + 1)
    values = tuple(mean_score(run, arm, round, score) for round in rounds)
    return Line(run.shown_as(arm), tuple(float(round) for round in rounds), values)


def _best_so_far(run: Run, arm: str) -> Line:
    curves, score = [seed.curves[arm] for seed in run.seeds], run.config.utility
    best = [list(accumulate((point.scores[score] for point in curve), _better)) for curve in curves]
    spent = tuple(
        sum(point.cost.upload_bytes for point in points) / len(points) / MEGABYTE
        for points in zip(*curves, strict=True)
    )
    shown = tuple(mean_share(scores) for scores in zip(*best, strict=True))
    return Line(run.shown_as(arm), spent, shown)


def _better(one: Score, other: Score) -> Score:
    return one if one.value >= other.value else other


def _cost_window(lines: Sequence[Line]) -> tuple[float, float]:
    # Starts somewhat below the first round after erasing, where the two begin to differ.
    erased = lines[-1].values
    top = max(value.mean for line in lines for value in line.values)
    low = max(top - 2.2 * max(top - erased[min(1, len(erased) - 1)].mean, 0.01), 0.0)
    margin = 0.05 * (top - low)
    return low - margin, top + margin


def _window(lines: Sequence[Line], score: str) -> tuple[float, float]:
    # Values before post-training may leave the frame, so that the others can be told apart.
    late = [value.mean for line in lines for value in line.values[1:] or line.values]
    finite = [value for value in late if math.isfinite(value)] or [1.0]
    if not names.is_proportion(score):
        return 0.0, 1.1 * max(finite)
    if score not in (names.CLEAN_ACCURACY, names.OTHERS_ACCURACY):
        return -0.02, 1.02
    firsts = [
        line.values[1].mean for line in lines if line.arm != names.RETRAIN and line.values[1:]
    ]
    low = min(firsts, default=min(finite))
    bottom = max(math.floor(10 * low) / 10 - 0.1, 0.0)
    top = min(math.ceil(20 * max(finite)) / 20, 1.0)
    margin = 0.02 * (top - bottom)
    return bottom - margin, top + margin
