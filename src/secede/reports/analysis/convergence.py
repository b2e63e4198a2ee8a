"""Had the federation learnt, and had it ended? Where not, a comparison says little."""

from __future__ import annotations

from secede.reports import names
from secede.reports.analysis.estimates import (
    Estimate,
    difference,
    format_mean,
    format_points,
    mean_share,
)
from secede.reports.records.runs import Run

LEARNT = 0.05  # least gain in usefulness by training, for there to be anything to erase
STILL_RISING = 0.01  # gained over the last fifth of the rounds: half of what usefulness may lose
PART = 5

_WHOSE = {names.FEDAVG: "before erasing", names.RETRAIN: "retrained"}


def hardly_learnt(run: Run) -> str | None:
    """Return a sentence if training hardly improved the model: then nothing can be lost either."""
    first, last = (
        mean_share(run.scores(names.FEDAVG, round, run.config.utility))
        for round in (0, run.last_round(names.FEDAVG))
    )
    if last.mean - first.mean >= LEARNT:
        return None
    return (
        f"training hardly improved the model: {names.SCORES[run.config.utility]} was "
        f"{format_mean(first, 'share')} untrained and {format_mean(last, 'share')} before erasing"
    )


def not_converged(run: Run) -> str:
    """Return a warning if the model from before, or the retrained one, was still improving.

    It is, if its usefulness surely rose over the last fifth of the rounds, and by over a point.
    """
    rises = {arm: last_rise(run, arm) for arm in _WHOSE}
    rising = [
        f"{_WHOSE[arm]}, it rose by {format_points(rise)} in {_window(run, arm)}"
        for arm, rise in rises.items()
        if rise.mean > STILL_RISING and (rise.low or 0.0) > 0
    ]
    if not rising:
        return ""
    return (
        f"Training had not converged: {names.SCORES[run.config.utility]} was still rising "
        f"({'; '.join(rising)}). The comparison says little of a federation that has."
    )


def last_rise(run: Run, arm: str) -> Estimate:
    """Return what usefulness gained over the last fifth of an arm's rounds."""
    last = run.last_round(arm)
    late, early = (
        run.scores(arm, round, run.config.utility) for round in (last, last - _rounds(run, arm))
    )
    # The counts beside a score compare it with retraining, not with an earlier round.
    plain = ([type(s)(s.value, s.count) for s in scores] for scores in (late, early))
    return difference(*plain)


def _rounds(run: Run, arm: str) -> int:
    return max(1, run.last_round(arm) // PART)


def _window(run: Run, arm: str) -> str:
    count = _rounds(run, arm)
    return "its last round" if count == 1 else f"its last {count} rounds"
