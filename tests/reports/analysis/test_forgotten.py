from collections.abc import Callable
from typing import Any

import pytest

from secede.reports.analysis.answers import Reply
from secede.reports.analysis.forgotten import ONE_SEED_REASON, judge_forgotten
from secede.reports.records.runs import Run

Make = Callable[..., Run]

PROBE = {
    "fedavg": [0.9] * 5,
    "retrain": [0.01] * 5,
    "retrain-again": [0.01] * 5,
    "projected-ascent": [0.0, 0.5, 0.02],
}


def judged(make_run: Make, **settings: Any) -> Any:
    fixed = {"attack_success": PROBE, **settings.pop("fixed", {})}
    made = make_run(rounds=4, post_rounds=2, fixed=fixed, **settings)
    return judge_forgotten(made, 2)


def losses(erased: float, before: float = 0.5) -> dict[str, dict[str, list[float]]]:
    curves = {"retrain": [4.0] * 5, "retrain-again": [4.0] * 5, "fedavg": [before] * 5}
    return {"leaver_loss": {**curves, "projected-ascent": [9.0, 9.0, erased]}}


@pytest.mark.parametrize(
    ("loss", "reply"), [(3.9, Reply.YES), (3.0, Reply.NO), (5.2, Reply.NO), (3.3, Reply.YES)]
)
def test_a_backdoor_that_is_gone_is_not_forgotten_while_the_loss_tells(
    make_run: Make, loss: float, reply: Reply
) -> None:
    answer = judged(make_run, fixed=losses(loss))
    assert answer.reply is reply
    assert f"{loss / 4:.2f}× retraining's" in answer.sentence
    assert ("it went further than retraining does" in answer.sentence) is (loss > 5)


def test_the_null_narrows_or_widens_the_margin(make_run: Make) -> None:
    fixed = {"attack_success": {**PROBE, "projected-ascent": [0.0, 0.5, 0.03]}}
    assert judged(make_run, fixed=fixed).reply is Reply.YES  # 3 points without a null
    assert judged(make_run, fixed=fixed, again=True).reply is Reply.NO  # 1 with a quiet one
    fixed["attack_success"] = {**fixed["attack_success"], "retrain-again": [0.03] * 5}
    assert judged(make_run, fixed=fixed, again=True).reply is Reply.YES  # 4: twice 2


def test_one_seed_never_says_yes_and_says_why(make_run: Make) -> None:
    answer = judged(make_run, seeds=(0,), fixed=losses(4.0))
    assert answer.reply is Reply.UNDETERMINED
    assert answer.parts[-1] == f"{ONE_SEED_REASON}."


def test_a_loss_of_one_seed_is_not_said_to_have_hardly_shown_the_leaver(make_run: Make) -> None:
    answer = judged(make_run, seeds=(0,), fixed=losses(4.0))
    assert "one seed gives it no interval" in answer.sentence
    assert "even before erasing" not in answer.sentence


def test_one_seed_may_say_no(make_run: Make) -> None:
    probe = {**PROBE, "projected-ascent": [0.0, 0.5, 0.3]}
    answer = judged(make_run, seeds=(0,), fixed={"attack_success": probe})
    assert answer.reply is Reply.NO


def counts(*by_rank: int) -> dict[str, Any]:
    """Canaries of four candidates; the drawn one beats its opponent unless it ranks last."""
    return {"ranks": [list(by_rank)], "wins": by_rank[0]}


@pytest.mark.parametrize(
    ("after", "reply", "said"),
    [
        (counts(2, 2, 2, 2), Reply.YES, "The canaries showed before the erasure"),
        (counts(8, 0, 0, 0), Reply.NO, "After the erasure the model still tells the canaries"),
    ],
)
def test_canaries_join_the_probe(
    make_run: Make, after: dict[str, Any], reply: Reply, said: str
) -> None:
    def planted(_seed: int, arm: str, _round: int) -> dict[str, Any]:
        return counts(8, 0, 0, 0) if arm == "fedavg" else after

    answer = judged(make_run, fixed=losses(4.0), canaries=planted)
    assert answer.reply is reply
    assert said in answer.sentence


def test_canaries_of_all_seeds_are_read_together(make_run: Make) -> None:
    def planted(_seed: int, arm: str, _round: int) -> dict[str, Any]:
        return counts(3, 1, 0, 0) if arm == "fedavg" else counts(1, 1, 1, 1)

    # Four canaries cannot reach p < 0.01 so; the twelve of three seeds do.
    alone, joined = (
        judged(make_run, fixed=losses(4.0), canaries=planted, seeds=range(count))
        for count in (1, 3)
    )
    assert "The test has no power here" in alone.sentence
    assert "The canaries showed before the erasure" in joined.sentence


def test_canaries_without_power_do_not_decide(make_run: Make) -> None:
    answer = judged(make_run, fixed=losses(4.0), canaries=lambda *_: counts(2, 2, 2, 2))
    assert answer.reply is Reply.YES
    assert "The test has no power here" in answer.sentence


def test_what_no_measure_saw_before_is_undetermined(make_run: Make) -> None:
    fixed = {**losses(4.0, before=3.9), "attack_success": {**PROBE, "fedavg": [0.02] * 5}}
    answer = judged(make_run, fixed=fixed)
    assert answer.reply is Reply.UNDETERMINED
    assert answer.sentence.count("even before erasing it hardly shows the leaver") == 2


def test_a_measure_that_saw_the_leaver_is_enough_to_judge(make_run: Make) -> None:
    fixed = {**losses(4.0), "attack_success": {**PROBE, "fedavg": [0.02] * 5}}
    assert judged(make_run, fixed=fixed).reply is Reply.YES


def test_differences_are_those_of_the_numbers_beside_them(make_run: Make) -> None:
    # 1.24 and 0.86 % are 0.38 apart, but a reader sees 1.2 and 0.9.
    probe = {**PROBE, "retrain": [0.0086] * 5, "projected-ascent": [0.0, 0.5, 0.0124]}
    text = judged(make_run, fixed={"attack_success": probe}).sentence.replace("\u00a0", " ")
    assert "is 1.2 % after 2 rounds of post-training, 0.9 % retrained" in text
    assert ": +0.3 points" in text
