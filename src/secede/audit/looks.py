"""Several looks at the same canaries, such as one after each round and each rung.

A trace is found at a look if its p value is below the level, however often one looks: looking often
makes a false finding more likely and never hides a true one. What grows with the planned looks is
what a look without a finding may claim: its bounds hold at all looks together (Bonferroni), and its
p value is stated with the correction.
"""

from __future__ import annotations

from collections.abc import Sequence

from secede.audit.bounds import lower_bound, upper_bound
from secede.errors import DataError


def level_of_one(level: float, looks: int) -> float:
    """Return the level at which one bound must hold for those of all looks to hold at `level`."""
    _check_looks(looks)
    return 1 - (1 - level) / looks


def lower_bounds(
    successes: Sequence[int], trials: int, *, looks: int, level: float = 0.95
) -> tuple[float, ...]:
    """Return lower bounds, one for each look so far, that hold at once; `looks` are planned."""
    _check_so_far(len(successes), looks)
    return tuple(lower_bound(count, trials, level_of_one(level, looks)) for count in successes)


def upper_bounds(
    successes: Sequence[int], trials: int, *, looks: int, level: float = 0.95
) -> tuple[float, ...]:
    """Return upper bounds, one for each look so far, that hold at once; `looks` are planned."""
    _check_so_far(len(successes), looks)
    return tuple(upper_bound(count, trials, level_of_one(level, looks)) for count in successes)


def corrected_p_value(p_value: float, looks: int) -> float:
    """Return the p value of one look, corrected for all that are planned."""
    _check_looks(looks)
    return min(1.0, p_value * looks)


def false_finding_bound(level: float, looks: int) -> float:
    """Return a bound on the chance that some look finds a trace in models without any."""
    _check_looks(looks)
    return min(1.0, level * looks)


def _check_looks(looks: int) -> None:
    if looks < 1:
        raise DataError(f"{looks} looks are planned, expected at least one")


def _check_so_far(taken: int, looks: int) -> None:
    _check_looks(looks)
    if taken > looks:
        raise DataError(f"{taken} looks were taken, {looks} planned: plan as many as are taken")
