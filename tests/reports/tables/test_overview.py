from collections.abc import Callable

from secede.reports.records.runs import Run
from secede.reports.tables.overview import Overview, against_retraining, overview

Make = Callable[..., Run]

SCORES = {
    "clean_accuracy": {"fedavg": [0.99] * 5, "fine-tune": [0.9, 0.98, 0.97]},
    "attack_success": {"fedavg": [0.95] * 5, "fine-tune": [0.9, 0.8, 0.5]},
}


def rows(table: Overview | None) -> dict[str, tuple[str, ...]]:
    assert table is not None
    return dict(table.rows)


def test_every_method_has_a_row_and_every_run_a_column(make_run: Make) -> None:
    first = make_run(rounds=4, post_rounds=2, methods=("fine-tune", "reference"), fixed=SCORES)
    second = make_run(rounds=4, post_rounds=1, methods=("fine-tune",), scenario="flipped")
    table = overview([first, second])
    found = rows(table)
    assert list(found) == ["FedAvg", "Retrained", "Fine-tuned", "Reference"]
    assert found["FedAvg"][0] == "99.0 / 95.0"
    assert found["Fine-tuned"][0] == "98.0 / 80.0 → 97.0 / 50.0"
    assert "→" not in found["Fine-tuned"][1]
    assert found["Reference"][1] == "–"
    assert table is not None
    assert table.headings[1].scores == "clean accuracy / flipped accuracy"


def test_the_judged_method_keeps_its_own_name_for_it_may_be_another_elsewhere(
    make_run: Make,
) -> None:
    runs = [
        make_run(seeds=(0,), methods=("projected-ascent", "fine-tune")),
        make_run(seeds=(0,), methods=("fine-tune", "projected-ascent")),
    ]
    assert "Projected ascent" in rows(overview(runs))
    assert "Erased" not in rows(overview(runs))


def test_runs_that_share_no_method_are_not_compared(make_run: Make) -> None:
    one, other = (make_run(seeds=(0,), methods=(name,)) for name in ("fine-tune", "reference"))
    assert overview([one]) is None
    assert overview([one, other]) is None


def test_it_is_written_as_markdown(make_run: Make) -> None:
    runs = [make_run(seeds=(0,), methods=("fine-tune",), clients=n) for n in (5, 10)]
    table = overview(runs)
    assert table is not None
    lines = table.markdown.splitlines()
    assert lines[0].startswith(
        "| Method | MNIST, backdoor, N=5 (clean accuracy / attack success) |"
    )
    assert lines[1] == "| --- | ---: | ---: |"
    assert len(lines) == 2 + 3


def test_runs_of_one_title_are_one_row_against_retraining(make_run: Make) -> None:
    use = {"retrain": [0.1, 0.5, 0.9, 0.98, 0.99], "fine-tune": [0.9, 0.97, 0.98]}
    probe = {"retrain": [0.01] * 5, "fine-tune": [0.9, 0.06, 0.02], "reference": [0.9, 0.01, 0.01]}
    fixed = {"clean_accuracy": use, "attack_success": probe}
    shape = {"rounds": 4, "post_rounds": 2, "fixed": fixed}
    runs = [make_run(methods=(name,), **shape) for name in ("fine-tune", "reference")]
    gaps, worth = against_retraining(runs).split("**Rounds of fair")
    title = runs[0].config.title
    assert f"| {title} | +5.0 → +1.0 | 0.0 → 0.0 |" in gaps
    # 97 % is what retraining has after its third round.
    assert f"| {title} | 3" in worth
    assert gaps.count(title) == worth.count(title) == 1


def test_what_a_round_is_worth_is_a_bound_where_a_retraining_never_got_there(
    make_run: Make,
) -> None:
    def use(seed: int, arm: str, round: int) -> dict[str, float]:
        late = {0: [0.1, 0.5, 0.98], 1: [0.1, 0.5, 0.6]}[seed]
        return {"clean_accuracy": late[round] if arm == "retrain" else 0.9}

    shape = {"rounds": 2, "post_rounds": 2, "methods": ("fine-tune",), "override": use}
    # After two rounds in the first seed; in the second never, which counts as all its two.
    assert "| > 2 |" in against_retraining([make_run(seeds=(1,), **shape)])
    assert "| ≥ 2 |" in against_retraining([make_run(seeds=(0, 1), **shape)])
