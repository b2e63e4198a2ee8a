from collections.abc import Callable

from secede.reports.records.runs import Run


def test_a_run_gives_its_values_seed_by_seed(make_run: Callable[..., Run]) -> None:
    run = make_run(seeds=(0, 2), override=lambda seed, arm, round: {"leaver_loss": seed + round})
    assert [score.value for score in run.scores("retrain", 3, "leaver_loss")] == [3, 5]
    assert [point.cost.rounds for point in run.points("retrain", 3)] == [3, 3]
    assert (run.last_round("retrain"), run.last_round("projected-ascent")) == (20, 10)


def test_attacks_that_were_not_made_are_absent(make_run: Callable[..., Run]) -> None:
    run = make_run(seeds=(0, 1))
    assert len(run.attacks("fedavg", 20, "yeom")) == 2
    assert run.attacks("fedavg", 19, "yeom") == ()
    assert run.attacks("fedavg", 20, "other") == ()


def test_the_first_method_is_the_judged_one_and_shown_as_erased(
    make_run: Callable[..., Run],
) -> None:
    run = make_run(seeds=(0,), methods=("second-choice", "projected-ascent", "fine-tune"))
    assert run.erased == "second-choice"
    assert run.config.arms == (
        "fedavg",
        "retrain",
        "second-choice",
        "projected-ascent",
        "fine-tune",
    )
    assert [run.shown_as(arm) for arm in run.config.arms[2:4]] == ["erased", "projected-ascent"]
    assert [run.label(arm) for arm in run.config.arms[2:]] == [
        "Erased",
        "Projected ascent",
        "Fine-tuned",
    ]
