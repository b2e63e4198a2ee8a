"""The methods of a run compared: what each needs, how near it is to retraining, at what cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from secede.reports import names
from secede.reports.analysis import (
    HIGH,
    LOW,
    NO_RISE,
    ONE,
    POSITIVE,
    QUANTITIES,
    UNITS,
    ZERO,
    Aim,
    Estimate,
    Quantity,
    Reply,
    Unit,
    amount,
    compare_at_round,
    compare_with_retrained,
    cost_to_reach,
    describe_round,
    difference,
    gap_to_retraining,
    mark_best,
    mean_over_seeds,
    mean_score,
    ratio,
)
from secede.reports.records.runs import Point, Run, Score
from secede.reports.tables.table import Column, Mark, Row, Table
from secede.text import plural
from secede.verification import rounds_that_pay

EXPLAINED = (
    "Bold: the best method of a column, and any other whose interval overlaps the best one's; of "
    "the main score, the one nearest to retraining's. ≈: the whole interval lies where the verdict "
    "calls the leaver forgotten (for a clean leaver, of loss and accuracy on its samples). Points "
    "from retraining and reverting are of the main score; reverting is what it rose by from the "
    "first round to the last. Rounds and uploads: all that a method asked for until after its "
    "first round of post-training, its own rounds included; retraining's are those of all its "
    "rounds, which are fair: every retained client, the same local epochs. Post-training pays "
    "until the retained clients' accuracy on their own samples is within half a point of what it "
    "was before erasing; zero where no round is needed. Costs and rounds are ranked among methods "
    "that are as retrained (≈ in the last round) only."
)

_COSTS: tuple[Quantity, ...] = ("rounds", "upload_mb")

Values = Mapping[str, Estimate | None]


@dataclass(frozen=True)
class _Moment:
    """A round of post-training; retraining and FedAvg are shown after their own last round."""

    key: str
    round: int
    last: bool


@dataclass(frozen=True)
class _Quantity:
    """A column, its values by arm, and the arms that are best or as retrained."""

    column: Column
    values: Values
    best: frozenset[str]
    same: frozenset[str] = frozenset()
    absent: Mapping[str, str] = field(default_factory=dict)  # text for an arm without a value

    def marks(self, arm: str) -> frozenset[Mark]:
        """Return the marks of one arm's value."""
        marks: list[Mark] = ["best"] if arm in self.best else []
        return frozenset((*marks, "as retrained") if arm in self.same else marks)


def method_table(run: Run) -> Table:
    """Return FedAvg, retraining and every method, with the best of each column marked."""
    quantities = tuple(_quantities(run))
    columns = tuple(quantity.column for quantity in quantities)
    rows = tuple(_row(run, arm, quantities) for arm in run.config.arms)
    return Table(columns, rows, words="needs")


def _label(run: Run, arm: str) -> str:
    if arm not in run.config.methods:
        return f"{run.label(arm)}, {plural(run.last_round(arm), 'round')}"
    return f"Erased ({names.method_words(arm)})" if arm == run.erased else run.label(arm)


def _row(run: Run, arm: str, quantities: tuple[_Quantity, ...]) -> Row:
    is_method = arm in run.config.methods
    return Row(
        label=_label(run, arm),
        arm=arm,
        values=tuple(quantity.values.get(arm) for quantity in quantities),
        note=_note(run, arm) if is_method else "",
        words=names.method_needs(arm) if is_method else "–",
        missing=tuple(
            quantity.absent.get(arm, "never") if is_method else "–" for quantity in quantities
        ),
        marks=tuple(quantity.marks(arm) for quantity in quantities),
    )


def _quantities(run: Run) -> Iterator[_Quantity]:
    moments = _moments(run)
    utility, probe = run.config.utility, run.config.main_probe
    near = NO_RISE if probe == names.ATTACK_SUCCESS else ZERO
    gaps = {
        moment: _values_at(
            run, moment, lambda arm, round: gap_to_retraining(run, arm, round, probe)
        )
        for moment in moments
    }
    for moment in moments:
        values = _values_at(run, moment, lambda arm, round: mean_score(run, arm, round, utility))
        column = _column(utility, names.SCORES[utility], moment, "share")
        yield _Quantity(column, values, _best_arms(run, values, HIGH))
    for moment in moments:
        values = _values_at(run, moment, lambda arm, round: mean_score(run, arm, round, probe))
        column = _column(probe, names.SCORES[probe], moment, "share")
        yield _Quantity(column, values, _best_arms(run, gaps[moment], near))
    for moment in moments:
        values = {arm: gap for arm, gap in gaps[moment].items() if arm != names.RETRAIN}
        column = _column("from_retraining", "points from retraining", moment, "difference")
        yield _Quantity(column, values, _best_arms(run, values, near), _as_retrained(run, moment))
    if len(moments) > 1:
        values = {arm: _reverting(run, arm, *moments) for arm in run.config.methods}
        column = Column("reverting", "reverting, points", "difference")
        yield _Quantity(column, values, _best_arms(run, values, NO_RISE))
    same = _as_retrained(run, moments[-1])
    yield from _costs(run, moments[0], same)
    if all(names.RETAINED_ACCURACY in seed.curves[names.FEDAVG][0].scores for seed in run.seeds):
        counts = {arm: _rounds_that_pay(run, arm) for arm in run.config.methods}
        column = Column("rounds_that_pay", "rounds of post-training that pay", "rounds")
        yield _reached(run, column, counts, same)
    values = _values_at(run, moments[-1], _loss_ratio(run))
    label = f"{names.SCORES[names.LEAVER_LOSS]} ÷ retraining's"
    column = _column("leaver_loss_ratio", label, moments[-1], "times")
    yield _Quantity(column, values, _best_arms(run, values, ONE))


def _costs(run: Run, moment: _Moment, same: frozenset[str]) -> Iterator[_Quantity]:
    whole = run.last_round(names.RETRAIN)
    ends = {names.RETRAIN: whole, **dict.fromkeys(run.config.methods, moment.round)}
    for key in _COSTS:
        values = {
            arm: mean_over_seeds([amount(point.cost, key) for point in run.points(arm, end)])
            for arm, end in ends.items()  # FedAvg's were spent before the request
        }
        column = Column(key, QUANTITIES[key], UNITS[key])
        yield _Quantity(column, values, _best_arms(run, _restrict(values, same), LOW))
    needed = {arm: retraining_rounds(run, arm, moment.round) for arm in run.config.methods}
    # Retraining that never reached it needs more rounds than it had.
    more = Estimate(whole + 1.0, None, None, len(run.seeds), "none")
    ranked = {arm: value or more for arm, value in needed.items()}
    label = f"rounds of retraining to its {names.SCORES[run.config.utility]}"
    column = _column("retraining_rounds", label, moment, "rounds")
    yield _Quantity(column, needed, _best_arms(run, _restrict(ranked, same), HIGH))
    for key in _COSTS:
        spent = {arm: _to_retrained(run, arm, key) for arm in run.config.methods}
        label = f"{QUANTITIES[key]} to retraining's {names.SCORES[run.config.utility]}"
        yield _reached(run, Column(f"{key}_to_retrained", label, UNITS[key]), spent, same)


def _reached(
    run: Run, column: Column, spent: Mapping[str, list[float | None]], same: frozenset[str]
) -> _Quantity:
    """Return the mean of what each arm spent to get somewhere, if it did in every seed."""
    reached = {arm: [one for one in by_seed if one is not None] for arm, by_seed in spent.items()}
    count = len(run.seeds)
    values = {
        arm: mean_over_seeds(by_seed, within=POSITIVE) if len(by_seed) == count else None
        for arm, by_seed in reached.items()
    }
    some = {arm: f"in {len(s)} of {plural(count, 'seed')}" for arm, s in reached.items() if s}
    return _Quantity(column, values, _best_arms(run, _restrict(values, same), LOW), absent=some)


def _moments(run: Run) -> tuple[_Moment, ...]:
    last = min(run.last_round(arm) for arm in run.config.methods)
    first = (_Moment("first", 1, False),) if last > 1 else ()
    return (*first, _Moment("last", last, True))


def _values_at(run: Run, moment: _Moment, value: Callable[[str, int], Estimate]) -> Values:
    trained = run.config.trained if moment.last else ()
    return {
        **{arm: value(arm, run.last_round(arm)) for arm in trained},
        **{arm: value(arm, moment.round) for arm in run.config.methods},
    }


def _best_arms(run: Run, values: Values, aim: Aim) -> frozenset[str]:
    methods = run.config.methods
    is_best = mark_best([values.get(arm) for arm in methods], aim)
    return frozenset(arm for arm, top in zip(methods, is_best, strict=True) if top)


def _as_retrained(run: Run, moment: _Moment) -> frozenset[str]:
    # FedAvg's mark says that the score hardly shows the leaver in the first place.
    ends = {names.FEDAVG: run.last_round(names.FEDAVG)} if moment.last else {}
    ends |= dict.fromkeys(run.config.methods, moment.round)
    return frozenset(
        arm for arm, round in ends.items() if compare_with_retrained(run, arm, round) is Reply.YES
    )


def _column(key: str, label: str, moment: _Moment, unit: Unit) -> Column:
    moment_words = plural(moment.round, "round") if moment.round else describe_round(0)
    return Column(f"{key}_{moment.key}", f"{label}, {moment_words}", unit)


def _loss_ratio(run: Run) -> Callable[[str, int], Estimate]:
    retrained = run.last_scores(names.RETRAIN, names.LEAVER_LOSS)
    return lambda arm, round: ratio(run.scores(arm, round, names.LEAVER_LOSS), retrained)


def _reverting(run: Run, arm: str, first: _Moment, last: _Moment) -> Estimate:
    # Without the sample-by-sample counts, which compare with retraining.
    late, early = (
        [Score(s.value, s.count) for s in run.scores(arm, moment.round, run.config.main_probe)]
        for moment in (last, first)
    )
    return difference(late, early)


def retraining_rounds(run: Run, arm: str, round: int) -> Estimate | None:
    """Return how many rounds of retraining are as useful as `arm` after `round`.

    A retraining that never reached that accuracy counts with all its rounds; None if it never did.
    """
    comparison = compare_at_round(run, arm, round)
    if comparison.retrained_never == len(run.seeds):
        return None
    pairs = zip(comparison.retrained, comparison.retraining_total, strict=True)
    return mean_over_seeds(
        [amount(cost or total, "rounds") for cost, total in pairs], within=POSITIVE
    )


def _to_retrained(run: Run, arm: str, key: Quantity) -> list[float | None]:
    """Return each seed's cost until an arm is as useful as retraining in the end; None: never."""
    utility = run.config.utility
    costs = (
        cost_to_reach(seed.curves[arm], level.value, utility)
        for seed, level in zip(run.seeds, run.last_scores(names.RETRAIN, utility), strict=True)
    )
    return [None if cost is None else amount(cost, key) for cost in costs]


def _restrict(values: Values, arms: frozenset[str]) -> Values:
    """Return the values of `arms` alone: a quick method that did not forget is no better."""
    return {arm: value for arm, value in values.items() if arm in arms}


def _rounds_that_pay(run: Run, arm: str) -> list[float | None]:
    """Return each seed's rounds of post-training that pay; None if accuracy never came back."""

    def accuracy(point: Point) -> float:
        return point.scores[names.RETAINED_ACCURACY].value

    counts = (
        rounds_that_pay(
            accuracy(seed.curves[names.FEDAVG][-1]), [accuracy(p) for p in seed.curves[arm]]
        )
        for seed in run.seeds
    )
    return [None if count is None else float(count) for count in counts]


def _note(run: Run, arm: str) -> str:
    never = compare_at_round(run, arm, _moments(run)[0].round).retrained_never
    if not 0 < never < len(run.seeds):
        return ""
    return f"retraining never reached that accuracy in {never} of {plural(len(run.seeds), 'seed')}"
