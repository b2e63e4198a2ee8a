from collections.abc import Callable

import pytest

from secede.reports.analysis.estimates import Estimate
from secede.reports.records.runs import Run
from secede.reports.tables.methods import method_table
from secede.reports.tables.table import Mark, Row, Table, markdown

Make = Callable[..., Run]

METHODS = ("projected-ascent", "fine-tune", "orthogonal-descent")
CLEAN = {
    "retrain": [0.1, 0.5, 0.9, 0.96, 0.98],
    "projected-ascent": [0.2, 0.95, 0.97],
    "fine-tune": [0.98, 0.98, 0.98],
    "orthogonal-descent": [0.9, 0.99, 0.99],
}
SUCCESS = {
    "fedavg": [0.9] * 5,
    "retrain": [0.01] * 5,
    "projected-ascent": [0.0, 0.02, 0.03],
    "fine-tune": [0.9, 0.8, 0.5],
    "orthogonal-descent": [0.0, 0.0, 0.0],
}
LOSS = {"retrain": [0.1] * 5, "projected-ascent": [1.0, 0.2, 0.2], "fine-tune": [0.05] * 3}


@pytest.fixture
def table(make_run: Make) -> Table:
    fixed = {"clean_accuracy": CLEAN, "attack_success": SUCCESS, "leaver_loss": LOSS}
    return method_table(make_run(rounds=4, post_rounds=2, methods=METHODS, fixed=fixed))


def row(table: Table, arm: str) -> Row:
    return next(row for row in table.rows if row.arm == arm)


def value(table: Table, arm: str, key: str) -> Estimate | None:
    keys = [column.key for column in table.columns]
    return row(table, arm).values[keys.index(key)]


def absent(table: Table, arm: str, key: str) -> str:
    """Return what stands for a value that is not there."""
    assert value(table, arm, key) is None
    return row(table, arm).missing_text([column.key for column in table.columns].index(key))


def means(table: Table, key: str) -> list[float | None]:
    found = [value(table, arm, key) for arm in METHODS]
    return [None if item is None else round(item.mean, 9) for item in found]


def marked(table: Table, key: str, mark: Mark) -> list[str]:
    index = [column.key for column in table.columns].index(key)
    return [row.arm for row in table.rows if mark in row.marks_of(index)]


def test_fedavg_retraining_and_every_method_have_a_row_with_its_needs(table: Table) -> None:
    assert [(row.label, row.words) for row in table.rows] == [
        ("FedAvg, 4 rounds", "–"),
        ("Retrained, 4 rounds", "–"),
        ("Erased (projected ascent)", "the leaver online"),
        ("Fine-tuned", "nothing"),
        ("Orthogonal descent", "the leaver online, single updates"),
    ]


def test_scores_stand_after_the_first_and_the_last_round(table: Table) -> None:
    assert means(table, "clean_accuracy_first") == [0.95, 0.98, 0.99]
    assert means(table, "clean_accuracy_last") == [0.97, 0.98, 0.99]
    assert means(table, "attack_success_first") == [0.02, 0.8, 0.0]
    assert means(table, "attack_success_last") == [0.03, 0.5, 0.0]
    assert table.columns[1].label == "clean accuracy, 2 rounds"


def test_differences_from_retraining_and_reverting_match_the_hand_sums(table: Table) -> None:
    assert means(table, "from_retraining_first") == [0.01, 0.79, -0.01]
    assert means(table, "from_retraining_last") == [0.02, 0.49, -0.01]
    assert means(table, "reverting") == [0.01, -0.3, 0.0]
    assert value(table, "retrain", "from_retraining_last") is None
    before = value(table, "fedavg", "from_retraining_last")
    assert before is not None
    assert before.mean == pytest.approx(0.89)


def test_costs_count_all_that_a_method_asked_for(table: Table) -> None:
    # One upload is 6.65348 MB; orthogonal descent asked for twenty before its first round of four.
    assert means(table, "rounds") == [1, 1, 21]
    assert means(table, "upload_mb") == [33.2674, 26.61392, 159.68352]
    whole = value(table, "retrain", "upload_mb")
    assert whole is not None
    assert whole.mean == pytest.approx(16 * 6.65348)
    assert value(table, "fedavg", "upload_mb") is None


def test_rounds_of_retraining_to_the_same_clean_accuracy_may_be_never(table: Table) -> None:
    assert means(table, "retraining_rounds_first") == [3, 4, None]
    assert absent(table, "orthogonal-descent", "retraining_rounds_first") == "never"
    assert absent(table, "fedavg", "retraining_rounds_first") == "–"


def test_who_got_back_to_retrainings_accuracy_in_some_seeds_is_told_in_how_many(
    make_run: Make,
) -> None:
    def low(seed: int, arm: str, round: int) -> dict[str, float]:
        if arm == "retrain" and seed == 1:
            return {"clean_accuracy": 0.97}
        return {"clean_accuracy": CLEAN[arm][round]} if arm in CLEAN else {}

    found = method_table(make_run(rounds=4, post_rounds=2, methods=METHODS, override=low))
    # The ascent ends at 0.97: retraining's in one seed of three.
    assert means(found, "rounds_to_retrained") == [None, 0, 1 + 20]
    assert absent(found, "projected-ascent", "rounds_to_retrained") == "in 1 of 3 seeds"
    assert "| in 1 of 3 seeds | in 1 of 3 seeds |" in markdown(found, "Method")
    never = {**CLEAN, "projected-ascent": [0.2, 0.3, 0.4]}
    run = make_run(rounds=4, post_rounds=2, methods=METHODS, fixed={"clean_accuracy": never})
    assert absent(method_table(run), "projected-ascent", "rounds_to_retrained") == "never"


def test_a_retraining_that_got_there_in_some_seeds_is_noted(make_run: Make) -> None:
    def late(seed: int, arm: str, round: int) -> dict[str, float]:
        if arm == "retrain" and seed == 1:
            return {"clean_accuracy": 0.5}
        return {"clean_accuracy": CLEAN[arm][round]} if arm in CLEAN else {}

    run = make_run(rounds=4, post_rounds=2, methods=METHODS, override=late)
    found = method_table(run)
    assert (
        row(found, "projected-ascent").note
        == "retraining never reached that accuracy in 1 of 3 seeds"
    )
    # Three rounds in two seeds; the third counts with all its four.
    assert means(found, "retraining_rounds_first")[0] == round(10 / 3, 9)
    assert row(found, "orthogonal-descent").note == ""


def test_the_leavers_loss_is_a_multiple_of_retrainings(table: Table) -> None:
    assert means(table, "leaver_loss_ratio_last")[:2] == [2.0, 0.5]


def test_the_best_of_each_column_is_marked_even_if_it_is_not_the_judged_method(
    table: Table,
) -> None:
    assert marked(table, "clean_accuracy_first", "best") == ["orthogonal-descent"]
    assert marked(table, "attack_success_last", "best") == ["orthogonal-descent"]
    assert marked(table, "from_retraining_last", "best") == ["orthogonal-descent"]
    assert marked(table, "reverting", "best") == ["fine-tune", "orthogonal-descent"]
    assert marked(table, "rounds", "best") == ["projected-ascent"]  # fine-tuning did not forget
    assert marked(table, "upload_mb", "best") == ["projected-ascent"]
    assert marked(table, "retraining_rounds_first", "best") == ["orthogonal-descent"]


def test_methods_within_the_verdicts_margin_are_marked(table: Table) -> None:
    within = ["projected-ascent", "orthogonal-descent"]
    assert marked(table, "from_retraining_first", "as retrained") == within
    assert marked(table, "from_retraining_last", "as retrained") == within


def test_the_margin_holds_for_the_round_it_is_shown_at(make_run: Make) -> None:
    back = {**SUCCESS, "projected-ascent": [0.0, 0.02, 0.2]}
    run = make_run(rounds=4, post_rounds=2, methods=METHODS, fixed={"attack_success": back})
    found = method_table(run)
    assert "projected-ascent" in marked(found, "from_retraining_first", "as retrained")
    assert "projected-ascent" not in marked(found, "from_retraining_last", "as retrained")


def test_a_score_that_never_showed_the_leaver_marks_fedavg_too(
    table: Table, make_run: Make
) -> None:
    assert "fedavg" not in marked(table, "from_retraining_last", "as retrained")
    unseen = {arm: [0.01] * 5 for arm in SUCCESS}
    run = make_run(rounds=4, post_rounds=2, methods=METHODS, fixed={"attack_success": unseen})
    assert "fedavg" in marked(method_table(run), "from_retraining_last", "as retrained")


@pytest.mark.parametrize(("rounds", "label"), [(1, "1 round"), (0, "before post-training")])
def test_one_moment_or_none_gives_one_column_and_nothing_that_reverts(
    make_run: Make, rounds: int, label: str
) -> None:
    found = method_table(make_run(seeds=(0,), rounds=4, post_rounds=rounds))
    keys = [column.key for column in found.columns]
    assert keys[:3] == ["clean_accuracy_last", "attack_success_last", "from_retraining_last"]
    assert "reverting" not in keys
    assert found.columns[0].label == f"clean accuracy, {label}"


def test_where_classes_are_erased_the_other_classes_tell_usefulness(make_run: Make) -> None:
    found = method_table(make_run(scenario="class", seeds=(0, 1)))
    assert found.columns[0].key == "others_accuracy_first"
    assert found.columns[2].key == "class_accuracy_first"


def test_a_loss_that_is_not_finite_breaks_nothing(make_run: Make) -> None:
    run = make_run(override=lambda seed, arm, round: {"leaver_loss": float("inf")})
    assert marked(method_table(run), "leaver_loss_ratio_last", "best") == []
