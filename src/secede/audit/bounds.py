"""What counts of hits and wins say of the truth: Clopper–Pearson bounds and a bound on epsilon.

Clopper–Pearson bounds hold for the mean chance of canaries that differ (Hoeffding 1956), and take
them as independent; that is sure only if the model does not depend on the coins. The bound on
epsilon needs no such assumption: Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1)
training run", Theorem 5.2 and Corollary 5.4.
"""

from __future__ import annotations

import math

from secede.errors import DataError

_HALVINGS = 60  # of the interval in which epsilon is searched
_MAX_STEPS, _PRECISION, _TINY = 100_000, 1e-15, 1e-300  # of the continued fraction


def lower_bound(successes: int, trials: int, level: float = 0.95) -> float:
    """Return the one-sided Clopper–Pearson bound that the true chance is not below."""
    _check(successes, trials, level)
    if successes == 0:
        return 0.0
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if _at_least(successes, trials, middle) < 1 - level:
            low = middle
        else:
            high = middle
    return low


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
    chance = 1 / (1 + math.exp(-epsilon))
    reached = _at_least(correct, guesses, chance)
    if not slack:
        return min(1.0, reached)
    above = [_at_least(k, guesses, chance) for k in range(correct)]  # P[W ≥ k]
    windows = ((above[correct - i] - reached) / i for i in range(1, correct + 1))
    return min(1.0, reached + slack * max(windows, default=0.0))


def _at_least(successes: int, trials: int, chance: float) -> float:
    """Return P[W ≥ successes] for W ~ Binomial(trials, chance).

    That is the incomplete beta function of chance, by its continued fraction where that converges
    fast. Without scipy, so that an auditor needs little to compute a verdict again.
    """
    if successes <= 0 or chance >= 1:
        return 1.0
    if chance <= 0 or successes > trials:
        return 0.0
    a, b = successes, trials - successes + 1
    if chance < (a + 1) / (a + b + 2):
        return _beta_part(a, b, chance)
    return 1 - _beta_part(b, a, 1 - chance)


def _beta_part(a: int, b: int, x: float) -> float:
    """Return the incomplete beta function below its mean, by Lentz's method."""
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    fraction, c, d = 1.0, 1.0, 0.0
    for step in range(_MAX_STEPS):
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d or _TINY)
        c = 1 + term / c or _TINY
        fraction *= c * d
        if abs(1 - c * d) < _PRECISION:
            break
    return math.exp(log_front) * (fraction - 1) / a


def _check(successes: int, trials: int, level: float) -> None:
    if not 0 <= successes <= trials or trials < 1:
        raise DataError(f"{successes} of {trials} trials, expected 0 to at least one")
    if not 0 < level < 1:
        raise DataError(f"a bound of level {level}, expected one between 0 and 1")
