"""One panel of a figure from one data set's runs, as values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from secede.reports import names
from secede.reports.costs import MEGABYTE
from secede.reports.formats import Unit
from secede.reports.plots import BarGroup, BarPanel, Line, LinePanel
from secede.reports.records import Run, Score
from secede.reports.statistics import measured, of_shares

BARS = (names.FEDAVG, names.RETRAIN, names.ERASED)
CURVES = (names.FINE_TUNE, names.REFERENCE, names.RETRAIN, names.ERASED)

Share = Literal["member_rate", "nonmember_accuracy"]
_SHARES: dict[Share, str] = {
    "member_rate": "leaver's samples called members",
    "nonmember_accuracy": "known non-members recognised",
}


def bar_panel(title: str, runs: Sequence[Run], score: str, round: int) -> BarPanel:
    """Return FedAvg, retrained and erased for each number of clients."""
    groups = (
        BarGroup(
            f"N = {run.config.clients}",
            tuple((arm, measured(run, arm, _moment(run, arm, round), score)) for arm in BARS),
        )
        for run in runs
    )
    return BarPanel(title, names.SCORES[score], _unit(score), tuple(groups))


def attack_panel(title: str, run: Run, share: Share, round: int) -> BarPanel:
    """Return one share of both membership attacks on FedAvg, retrained and erased."""
    groups = []
    for attack, label in names.ATTACKS.items():
        bars = []
        for arm in BARS:
            found = run.attacks(arm, _moment(run, arm, round), attack)
            if found:
                bars.append((arm, of_shares([getattr(item, share) for item in found])))
        if bars:
            groups.append(BarGroup(label, tuple(bars)))
    return BarPanel(title, _SHARES[share], "share", tuple(groups))


def communication_panel(title: str, run: Run) -> LinePanel:
    """Return megabytes uploaded against the best clean accuracy so far."""
    lines = tuple(_best_so_far(run, arm) for arm in (names.RETRAIN, names.ERASED))
    return LinePanel(
        title=title,
        position_label="MB uploaded",
        value_label=names.SCORES[names.CLEAN_ACCURACY],
        unit="share",
        lines=lines,
        window=_cost_window(lines),
        upright=True,
    )


def rounds_panel(title: str, run: Run, score: str) -> LinePanel:
    """Return one score of every arm against rounds, and FedAvg's last value as a level."""
    lines = tuple(_curve(run, arm, score) for arm in CURVES if arm in run.arms)
    last = run.last_round(names.FEDAVG)
    return LinePanel(
        title=title,
        position_label="round",
        value_label=names.SCORES[score],
        unit=_unit(score),
        lines=lines,
        window=_window(lines, score),
        level=(names.FEDAVG, measured(run, names.FEDAVG, last, score)),
    )


def _moment(run: Run, arm: str, round: int) -> int:
    last = run.last_round(arm)
    return min(round, last) if arm == names.ERASED else last


def _unit(score: str) -> Unit:
    return "share" if names.is_proportion(score) else "loss"


def _curve(run: Run, arm: str, score: str) -> Line:
    rounds = range(run.last_round(arm) + 1)
    values = tuple(measured(run, arm, round, score) for round in rounds)
    return Line(arm, tuple(float(round) for round in rounds), values)


def _best_so_far(run: Run, arm: str) -> Line:
    curves = [seed.curves[arm] for seed in run.seeds]
    best = [
        list(accumulate((point.scores[names.CLEAN_ACCURACY] for point in curve), _better))
        for curve in curves
    ]
    spent = tuple(
        sum(point.cost.upload_bytes for point in points) / len(points) / MEGABYTE
        for points in zip(*curves, strict=True)
    )
    return Line(arm, spent, tuple(of_shares(scores) for scores in zip(*best, strict=True)))


def _better(one: Score, other: Score) -> Score:
    return one if one.value >= other.value else other


def _cost_window(lines: Sequence[Line]) -> tuple[float, float]:
    # From somewhat below the first round after erasing, where the two begin to differ in use.
    erased = lines[-1].values
    top = max(value.mean for line in lines for value in line.values)
    low = max(top - 2.2 * max(top - erased[min(1, len(erased) - 1)].mean, 0.01), 0.0)
    margin = 0.05 * (top - low)
    return low - margin, top + margin


def _window(lines: Sequence[Line], score: str) -> tuple[float, float]:
    # The wreck before post-training may leave the frame, so that the rest can be told apart.
    late = [value.mean for line in lines for value in line.values[1:] or line.values]
    finite = [value for value in late if math.isfinite(value)] or [1.0]
    if not names.is_proportion(score):
        return 0.0, 1.1 * max(finite)
    if score != names.CLEAN_ACCURACY:
        return -0.02, 1.02
    firsts = [
        line.values[1].mean for line in lines if line.arm != names.RETRAIN and line.values[1:]
    ]
    low = min(firsts, default=min(finite))
    bottom = max(math.floor(10 * low) / 10 - 0.1, 0.0)
    top = min(math.ceil(20 * max(finite)) / 20, 1.0)
    margin = 0.02 * (top - bottom)
    return bottom - margin, top + margin
