"""Numbers stated in the paper's text, beside those measured here.

Halimi et al. 2022, sections 5.1 and 5.2 and appendices C and D. Their costs count uploads in
decimal megabytes, 4 bytes a parameter, the leaver's one upload included; so do ours. They are
compared with projected ascent, whichever method a run judges, where a run has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secede.reports import names
from secede.reports.analysis.costs import compare_at_level, compare_at_round, largest_ratio
from secede.reports.analysis.estimates import Estimate, Unit, mean_score
from secede.reports.records.runs import Run
from secede.text import plural

BASELINE = (
    "The paper's baseline is not the fair retraining measured here: its authors' published "
    "notebook drops one retained client and shortens the local epochs. Here every retained "
    "client trains with the same local epochs as in post-training, so ratios may be lower."
)
ARM = names.PROJECTED_ASCENT
LEVEL = 0.9813  # the clean accuracy at which the text states costs on MNIST
LARGEST = {"backdoor": 24.0, "flipped": 5.8}  # "up to", over all its cells of a scenario

Measured = tuple[Estimate | None, str]  # and a note on what is missing


@dataclass(frozen=True)
class Statement:
    """A number in the paper's text, and how to measure it in a run."""

    what: str
    stated: str
    unit: Unit
    measure: Callable[[Run], Measured]


@dataclass(frozen=True)
class PaperRow:
    """A stated number beside the measured one."""

    cell: str
    what: str
    stated: str
    unit: Unit
    measured: Estimate | None
    note: str


def stated_levels(run: Run) -> tuple[float, ...]:
    """Return the clean accuracies at which the paper's text states a cost for this run's cell."""
    return (LEVEL,) if run.config.name in _COSTS and ARM in run.config.methods else ()


def compare_with_text(runs: Sequence[Run]) -> tuple[PaperRow, ...]:
    """Return every stated number that one of the runs measures."""
    runs = [run for run in runs if ARM in run.config.methods]
    rows = [
        PaperRow(run.config.title, item.what, item.stated, item.unit, *_measured(run, item))
        for run in runs
        for item in STATED.get(run.config.name, ())
    ]
    cells = [run for run in runs if run.config.name.startswith("paper/")]
    return (*rows, *(row for name in LARGEST for row in _largest(name, cells)))


def _measured(run: Run, item: Statement) -> Measured:
    estimate, note = item.measure(run)
    if run.config.limit is not None:
        note = "; ".join(filter(None, (note, f"on {run.config.limit:,} images only")))
    return estimate, note


def _largest(scenario: str, cells: Sequence[Run]) -> list[PaperRow]:
    ratios = [(run, largest_ratio(run, ARM)) for run in cells if run.config.scenario == scenario]
    best = [(item[1], item[0], run) for run, item in ratios if item is not None]
    if not ratios:
        return []
    cell, what = f"{names.SCENARIOS[scenario]}, all cells", "largest ratio of uploads"
    stated = f"up to {LARGEST[scenario]:g}×"
    if not best:
        return [
            PaperRow(cell, what, stated, "times", None, "retraining never reached that accuracy")
        ]
    ratio, round, run = max(best, key=lambda item: item[0].mean)
    note = f"{run.config.title}, round {round}; of {plural(len(ratios), 'cell')} in this report"
    return [PaperRow(cell, what, stated, "times", ratio, note)]


def _score(score: str, percent: float) -> Statement:
    def measure(run: Run) -> Measured:
        if run.last_round(ARM) < 1:
            return None, "no post-training round was run"
        return mean_score(run, ARM, 1, score), ""

    what = f"{names.SCORES[score]}, {names.method_words(ARM)}, after 1 round"
    return Statement(what, f"{percent:g} %", "share", measure)


def _more_rounds(rounds: int) -> Statement:
    def measure(run: Run) -> Measured:
        if run.last_round(ARM) < 1:
            return None, "no post-training round was run"
        comparison = compare_at_round(run, ARM, 1)
        return comparison.spent(comparison.retrained, "rounds"), _never(comparison.retrained_never)

    what = "rounds of retraining to the clean accuracy of 1 round after erasing"
    return Statement(what, f"more than {rounds}", "rounds", measure)


def _to_level(arm: str, megabytes: int) -> Statement:
    def measure(run: Run) -> Measured:
        comparison = compare_at_level(run, ARM, LEVEL)
        costs = comparison.method if arm == ARM else comparison.retrained
        return comparison.spent(costs, "upload_mb"), _never(costs.count(None))

    who = names.method_words(ARM) if arm == ARM else "retrained"
    what = f"uploads to {100 * LEVEL:.2f} % clean accuracy, {who}"
    return Statement(what, f"{megabytes} MB", "MB", measure)


def _ratio(times: float) -> Statement:
    def measure(run: Run) -> Measured:
        ratio = compare_at_level(run, ARM, LEVEL).ratio("upload_mb")
        return ratio.estimate, _never(ratio.left_out)

    what = f"ratio of uploads to {100 * LEVEL:.2f} % clean accuracy"
    return Statement(what, f"{times:g}×", "times", measure)


def _never(seeds: int) -> str:
    return f"never reached in {seeds} of the seeds" if seeds else ""


def _cost(erased: int, retrained: int, times: float) -> tuple[Statement, ...]:
    return _to_level(ARM, erased), _to_level(names.RETRAIN, retrained), _ratio(times)


_COSTS = {
    "paper/mnist-backdoor-5": _cost(167, 453, 2.7),
    "paper/mnist-flipped-5": _cost(566, 1039, 1.8),
}
STATED: dict[str, tuple[Statement, ...]] = {
    "paper/mnist-backdoor-5": (
        _score(names.CLEAN_ACCURACY, 95.3),
        _score(names.BACKDOOR_ACCURACY, 11.38),
        _more_rounds(5),
        *_COSTS["paper/mnist-backdoor-5"],
    ),
    "paper/mnist-backdoor-10": (
        _score(names.CLEAN_ACCURACY, 96.6),
        _score(names.BACKDOOR_ACCURACY, 12.35),
        _more_rounds(5),
    ),
    "paper/mnist-flipped-5": _COSTS["paper/mnist-flipped-5"],
    "paper/mnist-flipped-10": (
        _score(names.CLEAN_ACCURACY, 95.47),
        _score(names.FLIPPED_ACCURACY, 55.57),
        _more_rounds(10),
    ),
}
