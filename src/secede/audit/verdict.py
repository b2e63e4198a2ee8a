"""The rule of the canary test, fixed before anybody looks, and the verdict that follows from it.

A trace that is found needs no control: by chance alone it is found with a probability below the
level. That none is found counts only if the model from before the erasure showed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from secede.audit.bounds import epsilon_lower_bound
from secede.audit.looks import corrected_p_value, level_of_one, upper_bounds
from secede.audit.ranks import Ranks, win_p_value
from secede.errors import ConfigError, DataError
from secede.text import plural

Verdict = Literal["no trace found", "trace found", "undetermined"]

NO_CANARIES = "no canaries were planted before the training"
NO_READER = "nobody was there to read the canaries"
_SMALLEST_SHOWN = 1e-300


@dataclass(frozen=True, kw_only=True)
class CanaryRule:
    """The level of the test, that of the bounds, and how many looks after the erasure are planned.

    All looks count: each rung's rounds at which the canaries may be read.
    """

    level: float = 0.01
    bound_level: float = 0.95
    looks: int = 1

    def __post_init__(self) -> None:
        for name, value in (("level", self.level), ("bound_level", self.bound_level)):
            if not 0 < value < 1:
                raise ConfigError(f"{name} is {value}, expected a number between 0 and 1")
        if self.looks < 1:
            raise ConfigError(f"looks is {self.looks}, expected at least one")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one model says of the canaries: counts alone, so that none is given away."""

    ranks: Ranks
    wins: int  # canaries whose drawn candidate ranks before its opponent
    count: int  # canaries

    def __post_init__(self) -> None:
        if self.ranks.count != self.count:
            raise DataError(f"ranks of {self.ranks.count} canaries, expected {self.count}")
        # Rank 1 beats every opponent and the last rank none.
        least, most = self.ranks.hits, self.count - self.ranks.last_places
        if not least <= self.wins <= most:
            raise DataError(f"{self.wins} wins, where the ranks allow {least} to {most}")

    @property
    def p_value(self) -> float:
        """The p value that decides: that of the rank sum."""
        return self.ranks.rank_p_value

    @property
    def win_p_value(self) -> float:
        """The p value of the pairwise wins; weaker, and stated beside the other."""
        return win_p_value(self.wins, self.count)

    @property
    def win_share(self) -> float:
        """Share of canaries whose drawn candidate beats its opponent; chance is a half."""
        return self.wins / self.count


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict, the reason in a sentence, and the numbers in it; None where nobody read."""

    verdict: Verdict
    reason: str
    p_before: float | None
    p_after: float | None
    p_after_corrected: float | None  # for the planned looks
    win_share_before: float | None
    win_share_after: float | None
    win_upper_bound: float | None  # at the rule's bound level, over all planned looks
    epsilon_lower_bound: float | None  # likewise, of the model after


def judge(
    before: Reading | None,
    after: Reading | None,
    rule: CanaryRule,
    reason_absent: str | None = None,
) -> Judgement:
    """Return what the canaries say of an erasure; `reason_absent` is why a reading is missing."""
    _check_readings(before, after, reason_absent)
    verdict, reason = _decide(before, after, rule, reason_absent)
    return Judgement(
        verdict=verdict,
        reason=reason,
        p_before=before.p_value if before else None,
        p_after=after.p_value if after else None,
        p_after_corrected=corrected_p_value(after.p_value, rule.looks) if after else None,
        win_share_before=before.win_share if before else None,
        win_share_after=after.win_share if after else None,
        win_upper_bound=_win_upper_bound(after, rule) if after else None,
        epsilon_lower_bound=_epsilon_lower_bound(after, rule) if after else None,
    )


def _decide(
    before: Reading | None, after: Reading | None, rule: CanaryRule, reason_absent: str | None
) -> tuple[Verdict, str]:
    if after is not None and after.p_value < rule.level:
        return "trace found", _found(after, rule)
    if before is None or after is None:
        return "undetermined", f"Undetermined: {reason_absent}."
    if before.p_value >= rule.level:
        return "undetermined", _no_power(before, rule)
    return "no trace found", _not_found(before, after, rule)


def _found(after: Reading, rule: CanaryRule) -> str:
    ranks = after.ranks
    corrected = corrected_p_value(after.p_value, rule.looks)
    looks = f", {shown_p(corrected)} for {plural(rule.looks, 'look')}" if rule.looks > 1 else ""
    return (
        f"After the erasure the model still tells the canaries: the {after.count:,} drawn ones "
        f"have a mean rank of {ranks.mean:.2f} where chance is {ranks.chance_mean:.2f} "
        f"(p {shown_p(after.p_value)}{looks}; threshold {rule.level:g})."
    )


def _no_power(before: Reading, rule: CanaryRule) -> str:
    return (
        f"Undetermined: the test has no power here. Before the erasure the model did not tell the "
        f"canaries either (p {shown_p(before.p_value)}; threshold {rule.level:g})."
    )


def _not_found(before: Reading, after: Reading, rule: CanaryRule) -> str:
    return (
        f"The canaries showed before the erasure (p {shown_p(before.p_value)}) and do not show "
        f"after it (p {shown_p(after.p_value)}; threshold {rule.level:g}). With "
        f"{100 * rule.bound_level:g} % confidence over {plural(rule.looks, 'look')}, what was "
        f"trained on beats its opponent in at most {100 * _win_upper_bound(after, rule):.0f} % of "
        f"cases: chance is 50 %, before it was {100 * before.win_share:.0f} %."
    )


def _win_upper_bound(after: Reading, rule: CanaryRule) -> float:
    (bound,) = upper_bounds([after.wins], after.count, looks=rule.looks, level=rule.bound_level)
    return bound


def _epsilon_lower_bound(after: Reading, rule: CanaryRule) -> float:
    level = level_of_one(rule.bound_level, rule.looks)
    return epsilon_lower_bound(after.wins, after.count, level=level)


def shown_p(p_value: float) -> str:
    """Return a p value with its sign, as in "= 0.031"."""
    return f"= {p_value:.2g}" if p_value >= _SMALLEST_SHOWN else f"< {_SMALLEST_SHOWN:g}"


def _check_readings(
    before: Reading | None, after: Reading | None, reason_absent: str | None
) -> None:
    missing = before is None or after is None
    if missing and not reason_absent:
        raise DataError("a reading is missing: say why in reason_absent")
    if not missing and reason_absent:
        raise DataError(f"both readings are there, and so is a reason for none: {reason_absent}")
    if before and after and before.ranks.groups != after.ranks.groups:
        raise DataError(
            f"readings of other canaries: (candidates, canaries) {before.ranks.groups} before, "
            f"{after.ranks.groups} after; read the same ones"
        )
