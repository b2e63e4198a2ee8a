"""What counts of hits and wins say of the truth: Clopper–Pearson bounds and a bound on epsilon.

Clopper–Pearson bounds hold for the mean chance of canaries that differ (Hoeffding 1956), and take
them as independent; that is sure only if the model does not depend on the coins. The bound on
epsilon needs no such assumption: Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1)
training run", Theorem 5.2 and Corollary 5.4.
"""

from __future__ import annotations

from scipy.special import bdtr, bdtrc, betaincinv, expit

from secede.errors import DataError

_HALVINGS = 60  # of the interval in which epsilon is searched


def lower_bound(successes: int, trials: int, level: float = 0.95) -> float:
    """Return the one-sided Clopper–Pearson bound that the true chance is not below."""
    _check(successes, trials, level)
    if successes == 0:
        return 0.0
    return float(betaincinv(successes, trials - successes + 1, 1 - level))


def upper_bound(successes: int, trials: int, level: float = 0.95) -> float:
    """Return the one-sided Clopper–Pearson bound that the true chance is not above."""
    _check(successes, trials, level)
    return 1 - lower_bound(trials - successes, trials, level)


def interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return the two-sided Clopper–Pearson interval: half of the error on each side."""
    _check(successes, trials, level)
    side = (1 + level) / 2
    return lower_bound(successes, trials, side), upper_bound(successes, trials, side)


def epsilon_lower_bound(
    correct: int,
    guesses: int,
    *,
    canaries: int | None = None,
    delta: float = 0.0,
    level: float = 0.95,
) -> float:
    """Return the epsilon that training exceeds, at this level, given so many correct guesses.

    Neighbours are data sets in which one canary's drawn candidate, with all its copies, is replaced
    by its opponent, with as many copies. A guess says which of the two was trained on, and a
    pairwise win is a correct guess. For adding or removing the copies, half of the bound holds.
    Whoever guesses may leave out some of the `canaries`, after a look at the model.
    """
    canaries = guesses if canaries is None else canaries
    _check(correct, guesses, level)
    if canaries < guesses:
        raise DataError(f"{guesses} guesses about {canaries} canaries, expected at most one each")
    if not 0 <= delta * 2 * canaries < 1:
        raise DataError(f"delta is {delta}, expected at least 0 and below 1 / (2 · {canaries})")
    return _largest_rejected(correct, guesses, 2 * canaries * delta, 1 - level)


def _largest_rejected(correct: int, guesses: int, slack: float, error: float) -> float:
    """Return the largest epsilon with a p value below `error`; 0 if there is none."""
    low, high = 0.0, 1.0
    while guess_p_value(correct, guesses, high, slack) < error:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if guess_p_value(correct, guesses, middle, slack) < error:
            low = middle
        else:
            high = middle
    return low


def guess_p_value(correct: int, guesses: int, epsilon: float, slack: float = 0.0) -> float:
    """Return a bound on the chance of so many correct guesses under (epsilon, delta).

    That is P[W ≥ v] + slack · max over i of P[v > W ≥ v − i] / i with W ~ Binomial(guesses,
    e^ε / (1 + e^ε)), v the correct guesses and slack 2 · canaries · delta. A slack below 1 makes it
    increase with epsilon: each term is P[W ≥ v] · (1 − slack / i) + P[W ≥ v − i] · slack / i.
    """
    chance = float(expit(epsilon))
    below = [0.0, *(float(bdtr(k, guesses, chance)) for k in range(correct))]  # P[W < k]
    windows = ((below[correct] - below[correct - i]) / i for i in range(1, correct + 1))
    reached = float(bdtrc(correct - 1, guesses, chance)) if correct else 1.0
    return min(1.0, reached + slack * max(windows, default=0.0))


def _check(successes: int, trials: int, level: float) -> None:
    if not 0 <= successes <= trials or trials < 1:
        raise DataError(f"{successes} of {trials} trials, expected 0 to at least one")
    if not 0 < level < 1:
        raise DataError(f"a bound of level {level}, expected one between 0 and 1")
