"""The readings of canaries in a receipt, one row each, with what the counts say of them.

Every number is computed again from the signed counts by the rule that the plan had.
"""

from __future__ import annotations

from dataclasses import dataclass

from secede.erasure.documents import CanaryPart, CanaryReading, Predicate
from secede.erasure.documents.canary_reading import UNREAD


@dataclass(frozen=True, kw_only=True)
class CanaryRow:
    """One reading: of the model from before the erasure, or of one after a round of a rung."""

    rung: str | None  # None: the model from before
    method: str | None
    round: int | None
    model: str  # its digest
    decides: bool  # whether the verdict rests on it, beside that of the model from before
    count: int  # canaries
    histograms: tuple[tuple[int, ...], ...]  # drawn candidates with rank 1, 2, ... of K
    mean_rank: float
    chance_mean: float  # what a model gives that knows nothing of the coins
    p_value: float
    wins: int
    win_bound: float | None  # the share of wins is at most this, over all planned looks
    signed: bool

    @property
    def when(self) -> str:
        """Which model was read, in words."""
        if self.round is None:
            return "before the erasure"
        rounds = "at once" if self.round == 0 else f"after round {self.round}"
        return f"{self.method}, {rounds}"


def canary_rows(receipt: Predicate) -> tuple[CanaryRow, ...]:
    """Return all readings of a receipt, that of the model from before first."""
    canaries, rows = receipt.verification.canaries, list[CanaryRow]()
    if canaries.before is not None:
        signed = canaries.before.envelope is not None
        rows.append(_row(canaries, canaries.before.reading, signed=signed))
    for number, look in enumerate(canaries.looks, start=1):
        is_last = number == len(canaries.looks)
        rows.append(
            _row(
                canaries,
                look.after.reading,
                signed=look.after.envelope is not None,
                rung=look.rung,
                method=look.method,
                round=look.round,
                decides=is_last and look.after.reading.model == receipt.models.after,
            )
        )
    return tuple(rows)


def _row(
    canaries: CanaryPart,
    reading: CanaryReading,
    *,
    signed: bool,
    rung: str | None = None,
    method: str | None = None,
    round: int | None = None,
    decides: bool = False,
) -> CanaryRow:
    counts = reading.counts()
    bound = None
    if round is not None:
        bound = canaries.rule.judge(None, reading, UNREAD).win_upper_bound
    return CanaryRow(
        rung=rung,
        method=method,
        round=round,
        model=reading.model,
        decides=decides,
        count=reading.count,
        histograms=reading.ranks,
        mean_rank=counts.ranks.mean,
        chance_mean=counts.ranks.chance_mean,
        p_value=counts.p_value,
        wins=reading.wins,
        win_bound=bound,
        signed=signed,
    )
