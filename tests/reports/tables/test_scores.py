from collections.abc import Callable
from typing import Any

import pytest

from secede.reports.records.runs import Run
from secede.reports.tables.scores import cost_table, membership_table, score_table

Make = Callable[..., Run]

CLEAN = {"retrain": [0.1, 0.5, 0.9, 0.96, 0.98], "projected-ascent": [0.2, 0.95, 0.97]}


def test_the_main_table_holds_every_model_at_its_rounds(make_run: Make) -> None:
    table = score_table(make_run())
    assert [row.label for row in table.rows] == [
        "FedAvg, 20 rounds",
        "Retrained, 20 rounds",
        "Fine-tuned, 2 rounds",
        "Reference, 2 rounds",
        "Erased, before post-training",
        "Erased, 1 round",
        "Erased, 2 rounds",
        "Erased, 5 rounds",
        "Erased, 10 rounds",
    ]


@pytest.mark.parametrize(
    ("scenario", "scores"),
    [
        ("backdoor", ["attack_success", "backdoor_accuracy"]),
        ("flipped", ["flipped_accuracy"]),
        ("clean", ["holdout_accuracy", "leaver_accuracy"]),
    ],
)
def test_the_main_table_shows_the_scenarios_scores_and_all_costs(
    make_run: Make, scenario: str, scores: list[str]
) -> None:
    table = score_table(make_run(scenario=scenario))
    costs = ["rounds", "upload_mb", "download_mb", "gradient_samples", "seconds"]
    expected = ["clean_accuracy", *scores, "leaver_loss", *costs]
    assert [column.key for column in table.columns] == expected


def test_every_score_comes_with_its_interval(make_run: Make) -> None:
    table = score_table(make_run(seeds=(0, 1, 2)))
    values = [value for row in table.rows for value in row.values]
    assert len(values) == 9 * 9
    assert all(value is not None and value.basis == "seeds" for value in values)


def test_one_seed_has_sampling_intervals_for_shares_only(make_run: Make) -> None:
    row = score_table(make_run(seeds=(0,))).rows[0]
    assert [value.basis for value in row.values if value] == ["test set"] * 3 + ["none"] * 6


def test_the_cost_table_compares_round_by_round_and_at_levels(make_run: Make) -> None:
    run = make_run(seeds=(0, 1), rounds=4, post_rounds=2, fixed={"clean_accuracy": CLEAN})
    table = cost_table(run, levels=(0.96,))
    assert [row.label for row in table.rows] == ["Erased", "Retrained", "Retrained ÷ erased"] * 3
    groups = [group.replace("\u00a0", " ") for group in dict.fromkeys(r.group for r in table.rows)]
    assert groups == [
        "To 95.00 % clean accuracy (the erased model's after 1 round)",
        "To 97.00 % clean accuracy (the erased model's after 2 rounds)",
        "To 96.00 % clean accuracy",
    ]
    ratio = table.rows[2]
    assert ratio.unit == "times"
    assert [value.mean for value in ratio.values if value][:2] == pytest.approx([3, 2.4])


def test_the_cost_table_says_who_never_got_there(make_run: Make) -> None:
    run = make_run(seeds=(0, 1), rounds=4, post_rounds=2, fixed={"clean_accuracy": CLEAN})
    erased, retrained, ratio = cost_table(run, levels=(0.975,)).rows[-3:]
    assert erased.note == "never in 2 of 2 seeds"
    assert retrained.note == ""
    assert erased.values == ratio.values == (None,) * 5


def test_without_post_training_there_is_no_cost_to_compare(make_run: Make) -> None:
    assert cost_table(make_run(post_rounds=0)).rows == ()


def test_membership_shows_both_attacks_with_non_members_beside(make_run: Make) -> None:
    table = membership_table(make_run(seeds=(0, 1)))
    assert [(row.group, row.label) for row in table.rows[:5]] == [
        ("Yeom's attack", "FedAvg, 20 rounds"),
        ("Yeom's attack", "Retrained, 20 rounds"),
        ("Yeom's attack", "Erased, 1 round"),
        ("Yeom's attack", "Erased, 2 rounds"),
        ("Yeom's attack", "Erased, 10 rounds"),
    ]
    means = [value.mean for value in table.rows[0].values if value]
    assert means == pytest.approx([0.78, 0.42, 0.78 - 0.58])


def test_all_methods_are_in_the_main_table_and_the_judged_one_round_by_round(
    make_run: Make,
) -> None:
    methods = ("second-choice", "projected-ascent", "own.methods:Forget")
    table = score_table(make_run(seeds=(0,), post_rounds=2, methods=methods))
    assert [(row.label, row.arm) for row in table.rows[2:]] == [
        ("Projected ascent, 2 rounds", "projected-ascent"),
        ("own.methods:Forget, 2 rounds", "own.methods:Forget"),
        ("Erased, before post-training", "second-choice"),
        ("Erased, 1 round", "second-choice"),
        ("Erased, 2 rounds", "second-choice"),
    ]


def test_costs_and_attacks_are_those_of_the_judged_method(make_run: Make) -> None:
    run = make_run(seeds=(0,), methods=("second-choice", "projected-ascent"))
    assert {row.arm for row in cost_table(run).rows} == {"second-choice", "retrain", "ratio"}
    assert {row.arm for row in membership_table(run).rows} == {"fedavg", "retrain", "second-choice"}


def said(seed: int, arm: str, round: int) -> dict[str, Any]:
    """Two canaries of three labels: known to FedAvg, by chance where the leaver took no part."""
    ranks = [2, 0, 0] if arm == "fedavg" else [0, 1, 1] if seed else [1, 1, 0]
    return {"ranks": [ranks], "wins": 2 if arm == "fedavg" else min(1, ranks[0])}


def test_canaries_stand_beside_the_probe_with_the_exact_p_of_all_seeds(make_run: Make) -> None:
    table = score_table(make_run(canaries=said, seeds=(0, 1)))
    keys = [column.key for column in table.columns]
    rank, p = keys.index("canary_rank"), keys.index("canary_p")
    assert table.columns[rank].label == "canaries: mean rank (chance 2)"
    fedavg, retrained = table.rows[:2]
    # Four coins of three sides fall in 81 ways: one gives a sum of 4.
    assert [fedavg.values[rank].mean, fedavg.values[p].mean] == [1, pytest.approx(1 / 81)]  # type: ignore[union-attr]
    # Ranks 1 and 2, 2 and 3: the sum is 8, and 50 ways give that or less.
    assert [retrained.values[rank].mean, retrained.values[p].mean] == [2, pytest.approx(50 / 81)]  # type: ignore[union-attr]
    low, _ = retrained.values[rank].interval  # type: ignore[union-attr, misc]
    assert low == 1, "no rank is below the first"


def test_without_canaries_the_table_says_nothing_of_them(make_run: Make) -> None:
    assert not [c for c in score_table(make_run()).columns if c.key.startswith("canary")]
