"""How far a score may lie from retraining's: by what two retrainings differ by, the null.

A run that retrains twice, on the same data with other randomness, says what no erasure can be held
to. Allowed is twice that difference, or a floor where two retrainings hardly differ at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from secede.reports import names
from secede.reports.analysis.estimates import format_number
from secede.reports.records.runs import Run

FORGOTTEN_POINTS = 3.0  # without a null, the probe's score may differ from retraining's by this
LOSS_FACTOR = 1.25  # floor of a loss on the leaver's samples, as a multiple of retraining's
FLOOR_POINTS = 1.0  # with a null, a share may always differ by this
NULL_TIMES = 2.0  # times the null's spread is allowed
NULL_SEEDS = 3  # fewer seeds tell too little of what two retrainings differ by


@dataclass(frozen=True)
class Margin:
    """What a score may differ by: points / 100 of a share, the logarithm of a loss's ratio.

    `spread` is the root mean square of what two retrainings differ by; None: a fixed margin.
    """

    size: float
    spread: float | None
    is_loss: bool = False

    @property
    def words(self) -> str:
        """The margin, such as "3 are allowed"."""
        if self.is_loss:
            factor = math.exp(self.size)
            return f"{1 / factor:.2f} to {factor:.2f} is allowed"
        return f"{_points(self.size)} {'is' if self.size == 0.01 else 'are'} allowed"

    @property
    def spread_words(self) -> str:
        """What two retrainings differ by, in the margin's unit."""
        assert self.spread is not None
        if self.is_loss:
            return f"a factor of {math.exp(self.spread):.2f}"
        points = _points(self.spread)
        return f"{points} point{'' if points == '1' else 's'}"


def margin(run: Run, score: str) -> Margin:
    """Return what a score may lie from retraining's."""
    is_loss = not names.is_proportion(score)
    gaps = _null_gaps(run, score)
    if len(gaps) < NULL_SEEDS or not all(map(math.isfinite, gaps)):
        return Margin(math.log(LOSS_FACTOR) if is_loss else FORGOTTEN_POINTS / 100, None, is_loss)
    spread = _as_printed(math.sqrt(math.fsum(gap * gap for gap in gaps) / len(gaps)), is_loss)
    floor = math.log(LOSS_FACTOR) if is_loss else FLOOR_POINTS / 100
    return Margin(max(floor, NULL_TIMES * spread), spread, is_loss)


def explain_margins(run: Run, score: str) -> str:
    """Return where the margins come from, as a sentence."""
    if not run.config.retrains_again:
        return "The margins are fixed: this run has no second retraining to take them from."
    if len(run.seeds) < NULL_SEEDS:
        tell = "1 seed tells" if len(run.seeds) == 1 else f"{len(run.seeds)} seeds tell"
        return (
            f"The margins are fixed: {tell} too little of what two retrainings differ by "
            f"({NULL_SEEDS} are needed)."
        )
    main, loss = margin(run, score), margin(run, names.LEAVER_LOSS)
    if main.spread is None or loss.spread is None:
        return "The margins are fixed where two retrainings differ by no finite number."
    return (
        f"Two retrainings differ by {main.spread_words} here, and by {loss.spread_words} in that "
        f"loss: {NULL_TIMES:g} times as much is allowed, and never less than {FLOOR_POINTS:g} "
        f"point or a factor of {LOSS_FACTOR:g}."
    )


def _null_gaps(run: Run, score: str) -> list[float]:
    """Return, by seed, what the second retraining's last score is above the first one's."""
    if not run.config.retrains_again:
        return []
    both = (run.last_scores(arm, score) for arm in (names.RETRAIN_AGAIN, names.RETRAIN))
    pairs = [(one.value, other.value) for one, other in zip(*both, strict=True)]
    if names.is_proportion(score):
        return [one - other for one, other in pairs]
    return [math.log(a / b) if a > 0 and b > 0 else math.nan for a, b in pairs]


def _as_printed(spread: float, is_loss: bool) -> float:
    """Return a spread with the digits that are shown, so that its double is what a reader finds."""
    return math.log(round(math.exp(spread), 2)) if is_loss else round(spread, 4)


def _points(share: float) -> str:
    text = format_number(share, "points", digits=2)
    return text.rstrip("0").rstrip(".") if "." in text else text
