"""Tables of scores, costs and membership attacks of every arm, each value with its interval."""

from __future__ import annotations

from collections.abc import Iterator

from secede.reports import names
from secede.reports.analysis import (
    QUANTITIES,
    UNITS,
    Comparison,
    Estimate,
    amount,
    compare_at_level,
    compare_at_round,
    difference,
    format_mean,
    judged_round,
    mean_over_seeds,
    mean_score,
    mean_share,
    score_unit,
)
from secede.reports.records.runs import Run, Score
from secede.reports.tables.table import Column, Row, Table
from secede.text import plural

SHOWN_ROUNDS = (0, 1, 2, 5)  # of the erased model, besides its last


def score_table(run: Run) -> Table:
    """Return scores and costs of FedAvg, the retrained, other methods' and the erased model."""
    scores = _shown_scores(run)
    columns = [Column(score, names.SCORES[score], score_unit(score)) for score in scores]
    rows = []
    for arm, round in _shown_models(run):
        values = (mean_score(run, arm, round, score) for score in scores)
        said = _said_by_canaries(run, arm, round) if run.has_canaries else ()
        rows.append(Row(_label(run, arm, round), arm, (*values, *said, *_costs(run, arm, round))))
    said_columns = _canary_columns(run) if run.has_canaries else ()
    return Table((*columns, *said_columns, *_cost_columns()), tuple(rows))


def cost_table(run: Run, levels: tuple[float, ...] = ()) -> Table:
    """Return the costs of an equally useful model, erased and retrained, with their ratio."""
    last = run.last_round(run.erased)
    rounds = sorted({1, judged_round(run), last} & set(range(1, last + 1)))
    comparisons = [compare_at_round(run, run.erased, round) for round in rounds]
    comparisons += [compare_at_level(run, run.erased, level) for level in levels]
    utility = names.SCORES[run.config.utility]
    rows = (row for comparison in comparisons for row in _cost_rows(run, comparison, utility))
    return Table(_cost_columns(), tuple(rows))


def membership_table(run: Run) -> Table:
    """Return both attacks on every attacked model, with their accuracy on known non-members."""
    columns = (
        Column("member_rate", "leaver's samples called members", "share"),
        Column("nonmember_accuracy", "known non-members recognised", "share"),
        Column("advantage", "advantage over guessing", "points"),
    )
    models = sorted(
        {model for seed in run.seeds for model in seed.membership},
        key=lambda model: (run.config.arms.index(model[0]), model[1]),
    )
    rows = tuple(
        _attack_row(run, arm, round, attack)
        for attack in names.ATTACKS
        for arm, round in models
        if run.attacks(arm, round, attack)
    )
    return Table(columns, rows)


def _canary_columns(run: Run) -> tuple[Column, ...]:
    last = run.last_round(names.FEDAVG)
    chance = run.readings(names.FEDAVG, last)[0].ranks.chance_mean
    return (
        Column(names.CANARY_RANK, f"canaries: mean rank (chance {chance:g})", "rank"),
        Column("canary_p", "canaries: p, all seeds together", "p"),
    )


def _said_by_canaries(run: Run, arm: str, round: int) -> tuple[Estimate, Estimate]:
    """Return the mean rank, and the exact p over all seeds."""
    p_value = Estimate(run.canary_p(arm, round), None, None, len(run.seeds), "none")
    return mean_score(run, arm, round, names.CANARY_RANK), p_value


def _shown_scores(run: Run) -> list[str]:
    scores = [names.CLEAN_ACCURACY, run.config.main_probe]
    if run.config.scenario == "backdoor":
        scores.append(names.BACKDOOR_ACCURACY)
    if run.config.scenario == "clean":
        scores.append(names.LEAVER_ACCURACY)
    if run.config.utility not in scores:
        scores.append(run.config.utility)
    return [*scores, names.LEAVER_LOSS]


def _shown_models(run: Run) -> list[tuple[str, int]]:
    last, judged = run.last_round(run.erased), judged_round(run)
    trained = [(arm, run.last_round(arm)) for arm in run.config.trained]
    others = [(arm, min(judged, run.last_round(arm))) for arm in run.config.methods[1:]]
    rounds = sorted({round for round in SHOWN_ROUNDS if round <= last} | {last})
    return [*trained, *others, *((run.erased, round) for round in rounds)]


def _label(run: Run, arm: str, round: int) -> str:
    started = arm in run.config.methods and not round
    return f"{run.label(arm)}, {'before post-training' if started else plural(round, 'round')}"


def _costs(run: Run, arm: str, round: int) -> Iterator[Estimate]:
    for quantity in QUANTITIES:
        yield mean_over_seeds([amount(point.cost, quantity) for point in run.points(arm, round)])


def _cost_columns() -> tuple[Column, ...]:
    return tuple(Column(key, label, UNITS[key]) for key, label in QUANTITIES.items())


def _cost_rows(run: Run, comparison: Comparison, utility: str) -> Iterator[Row]:
    group = f"To {format_mean(mean_over_seeds(comparison.levels), 'share', digits=2)} {utility}"
    group += f" ({comparison.label})" if comparison.label else ""
    for arm, costs in ((run.erased, comparison.method), (names.RETRAIN, comparison.retrained)):
        never = costs.count(None)
        spent = tuple(comparison.spent(costs, quantity) for quantity in QUANTITIES)
        note = f"never in {never} of {plural(len(costs), 'seed')}" if never else ""
        yield Row(run.label(arm), arm, spent, group, note)
    ratios = [comparison.ratio(quantity) for quantity in QUANTITIES]
    never = max(comparison.method_never, comparison.retrained_never)
    note = "over the seeds in which both reached that accuracy" if never else ""
    estimates = tuple(ratio.estimate for ratio in ratios)
    yield Row("Retrained ÷ erased", "ratio", estimates, group, note, "times")


def _attack_row(run: Run, arm: str, round: int, attack: str) -> Row:
    attacks = run.attacks(arm, round, attack)
    member_rates = [item.member_rate for item in attacks]
    accuracies = [item.nonmember_accuracy for item in attacks]
    false_rates = [Score(1 - score.value, score.count) for score in accuracies]
    values = (
        mean_share(member_rates),
        mean_share(accuracies),
        difference(member_rates, false_rates),
    )
    return Row(_label(run, arm, round), arm, values, f"{names.ATTACKS[attack]}'s attack")
