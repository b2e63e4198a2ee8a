"""Costs of reaching a clean accuracy, compared with fair retraining.

Where the leaver has classes of its own, accuracy on the other classes replaces clean accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from secede.reports import names
from secede.reports.analysis.estimates import Estimate, Unit, mean_over_seeds
from secede.reports.records.runs import Cost, Point, Run
from secede.text import plural

MEGABYTE = 1_000_000

Quantity = Literal["rounds", "upload_mb", "download_mb", "gradient_samples", "seconds"]
QUANTITIES: dict[Quantity, str] = {
    "rounds": "rounds",
    "upload_mb": "uploaded",
    "download_mb": "downloaded",
    "gradient_samples": "gradient samples",
    "seconds": "computing",
}
UNITS: dict[Quantity, Unit] = {
    "rounds": "rounds",
    "upload_mb": "MB",
    "download_mb": "MB",
    "gradient_samples": "count",
    "seconds": "seconds",
}


@dataclass(frozen=True)
class Ratio:
    """Retraining's cost over a method's, per seed; above 1, the method is cheaper.

    `estimate` averages the seeds in which both reached the level and the method cost anything.
    `at_least` averages all seeds in which the method reached it; a retraining that never did
    counts with all that it spent.
    """

    estimate: Estimate | None
    at_least: Estimate | None
    left_out: int


@dataclass(frozen=True)
class Comparison:
    """Cost per seed to reach a level, of a method and of fair retraining; None if never reached."""

    label: str
    levels: tuple[float, ...]
    method: tuple[Cost | None, ...]
    retrained: tuple[Cost | None, ...]
    retraining_total: tuple[Cost, ...]

    @property
    def method_never(self) -> int:
        """Number of seeds in which the method never reached the level."""
        return self.method.count(None)

    @property
    def retrained_never(self) -> int:
        """Number of seeds in which retraining never reached the level."""
        return self.retrained.count(None)

    def spent(self, costs: Sequence[Cost | None], quantity: Quantity) -> Estimate | None:
        """Return the mean cost over the seeds that reached the level; None if none did."""
        values = [amount(cost, quantity) for cost in costs if cost is not None]
        return mean_over_seeds(values) if values else None

    def ratio(self, quantity: Quantity) -> Ratio:
        """Return how many times as much fair retraining costs."""
        exact, bounds = [], []
        for method, retrained, total in zip(
            self.method, self.retrained, self.retraining_total, strict=True
        ):
            if method is None or amount(method, quantity) == 0:
                continue
            bounds.append(amount(retrained or total, quantity) / amount(method, quantity))
            if retrained is not None:
                exact.append(bounds[-1])
        return Ratio(
            estimate=mean_over_seeds(exact) if exact else None,
            at_least=mean_over_seeds(bounds) if bounds else None,
            left_out=len(self.method) - len(exact),
        )


def amount(cost: Cost, quantity: Quantity) -> float:
    """Return one quantity of a cost; megabytes are decimal, as in the paper."""
    match quantity:
        case "rounds":
            return float(cost.rounds)
        case "upload_mb":
            return cost.upload_bytes / MEGABYTE
        case "download_mb":
            return cost.download_bytes / MEGABYTE
        case "gradient_samples":
            return float(cost.gradient_samples)
        case "seconds":
            return cost.seconds


def cost_to_reach(curve: Sequence[Point], level: float, score: str) -> Cost | None:
    """Return the cost at the first round whose score reaches `level`; None if none does."""
    for point in curve:
        if point.scores[score].value >= level:
            return point.cost
    return None


def compare_at_level(run: Run, arm: str, level: float) -> Comparison:
    """Compare the cost of reaching one clean accuracy, the same for every seed."""
    score = run.config.utility
    spent = tuple(cost_to_reach(seed.curves[arm], level, score) for seed in run.seeds)
    return _against_retraining(run, "", [level] * len(run.seeds), spent)


def compare_at_round(run: Run, arm: str, round: int) -> Comparison:
    """Compare an arm's cost up to `round` with retraining to the accuracy each seed has there."""
    points = run.points(arm, round)
    levels = [point.scores[run.config.utility].value for point in points]
    whose = "the erased model's" if arm == run.erased else f"{names.method_words(arm)}'s"
    label = f"{whose} after {plural(round, 'round')}"
    return _against_retraining(run, label, levels, tuple(point.cost for point in points))


def _against_retraining(
    run: Run, label: str, levels: Sequence[float], method: tuple[Cost | None, ...]
) -> Comparison:
    curves = [seed.curves[names.RETRAIN] for seed in run.seeds]
    score = run.config.utility
    retrained = tuple(
        cost_to_reach(curve, level, score) for curve, level in zip(curves, levels, strict=True)
    )
    totals = tuple(curve[-1].cost for curve in curves)
    return Comparison(label, tuple(levels), method, retrained, totals)


def largest_ratio(run: Run, arm: str) -> tuple[int, Estimate] | None:
    """Return the post-training round with the largest upload ratio, and that ratio.

    Only rounds count whose accuracy retraining reached in every seed, so it is no bound.
    """
    ratios: list[tuple[int, Estimate]] = []
    for round in range(1, run.last_round(arm) + 1):
        ratio = compare_at_round(run, arm, round).ratio("upload_mb")
        if ratio.estimate is not None and ratio.left_out == 0:
            ratios.append((round, ratio.estimate))
    return max(ratios, key=lambda item: item[1].mean, default=None)
