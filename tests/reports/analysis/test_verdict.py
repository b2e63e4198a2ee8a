from collections.abc import Callable
from itertools import product

import pytest

from secede.reports.analysis.answers import Answer, Reply
from secede.reports.analysis.verdict import (
    ONE_SEED,
    Verdict,
    joint_headline,
    judge,
    judged_round,
)
from secede.reports.records.runs import Run

Make = Callable[..., Run]


def verdict(*replies: Reply, seeds: int = 3) -> Verdict:
    first, second, third = (Answer("Well?", reply, "So and so.") for reply in replies)
    return Verdict(2, seeds, first, second, third)


@pytest.mark.parametrize(("post_rounds", "round"), [(10, 2), (2, 2), (1, 1), (0, 0)])
def test_the_second_round_is_judged_or_the_last(
    make_run: Make, post_rounds: int, round: int
) -> None:
    run = make_run(seeds=(0,), post_rounds=post_rounds)
    assert judged_round(run) == judge(run).round == round


def test_a_good_erasure_is_answered_yes_three_times(make_run: Make) -> None:
    clean = {"retrain": [0.1, 0.5, 0.9, 0.96, 0.98], "projected-ascent": [0.2, 0.95, 0.97]}
    success = {"fedavg": [0.9] * 5, "retrain": [0.0] * 5, "projected-ascent": [0.0] * 3}
    run = make_run(
        rounds=4, post_rounds=2, fixed={"clean_accuracy": clean, "attack_success": success}
    )
    found = judge(run)
    assert [answer.reply for answer in found.answers] == [Reply.YES] * 3
    assert found.headline == (
        "Within the stated limits, the erased model shows as little of the leaver as retraining "
        "leaves; it is as useful; erasing was cheaper than retraining."
    )


def test_every_combination_of_answers_has_a_headline_that_claims_no_proof() -> None:
    headlines = {verdict(*replies).headline for replies in product(Reply, repeat=3)}
    assert len(headlines) == 27
    assert not any("proof" in headline or "prove" in headline for headline in headlines)


def test_the_text_holds_questions_answers_and_the_warning_about_one_seed() -> None:
    lines = verdict(Reply.YES, Reply.NO, Reply.UNDETERMINED, seeds=1).text.splitlines()
    assert lines[1:] == [
        "Well? Yes. So and so.",
        "Well? No. So and so.",
        "Well? Undetermined. So and so.",
        ONE_SEED,
    ]
    assert verdict(Reply.YES, Reply.NO, Reply.YES).note == ""


def test_several_runs_are_counted() -> None:
    found = [verdict(Reply.YES, Reply.NO, Reply.YES), verdict(Reply.YES, Reply.NO, Reply.NO)]
    assert joint_headline(found, ["second-choice", "federaser"]) == (
        "Of 2 runs, erased by second choice or FedEraser, "
        "the leaver is forgotten as by retraining in 2, the model is as useful in 0, "
        "and erasing was cheaper in 1."
    )
    assert joint_headline(found[:1], ["fine-tune"]) == found[0].headline
