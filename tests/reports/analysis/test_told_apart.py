from collections.abc import Callable

import pytest

from secede.reports.analysis.answers import Reply
from secede.reports.analysis.told_apart import judge_told_apart
from secede.reports.records.runs import Run

Make = Callable[..., Run]


def apart(make_run: Make, shift: float, *, again: float = 0.0, seeds: int = 5) -> Run:
    """Loss on the leaver's samples is so many times retraining's, with noise of its own."""
    noise = (0.01, -0.02, 0.015, -0.005, 0.0)

    def curves(seed: int, arm: str, round: int) -> dict[str, float]:
        more = {"projected-ascent": shift, "retrain-again": again}.get(arm, 0.0)
        same = {"clean_accuracy": 0.9, "attack_success": 0.1, "leaver_accuracy": 0.5}
        wobble = noise[seed] if arm != "retrain" else 0.0
        return {**same, "leaver_loss": 1 + more + wobble}

    return make_run(seeds=range(seeds), rounds=3, post_rounds=2, again=True, override=curves)


def test_a_loss_that_surely_differs_tells_the_erased_model(make_run: Make) -> None:
    answer = judge_told_apart(apart(make_run, 0.3), 2)
    assert answer.reply is Reply.YES
    assert answer.sentence.startswith("By loss on the leaver's samples (p < 0.001), of 6 questions")
    assert answer.sentence.endswith("A second retraining is told apart by none of them.")


def test_noise_tells_nothing(make_run: Make) -> None:
    answer = judge_told_apart(apart(make_run, 0.0), 2)
    assert answer.reply is Reply.NO
    assert answer.sentence.startswith("Not at this power: of 6 questions, none finds")


def test_what_six_questions_find_by_chance_is_not_sure(make_run: Make) -> None:
    # Its own p value is 0.02; times the six that were asked, it is 0.12.
    answer = judge_told_apart(apart(make_run, 0.022), 2)
    assert answer.reply is Reply.NO


def test_a_null_that_is_told_apart_is_said(make_run: Make) -> None:
    answer = judge_told_apart(apart(make_run, 0.3, again=0.3), 2)
    assert answer.sentence.endswith("A second retraining is, too, by loss on the leaver's samples.")


@pytest.mark.parametrize("seeds", [1, 2])
def test_two_seeds_cannot_say(make_run: Make, seeds: int) -> None:
    assert judge_told_apart(apart(make_run, 0.3, seeds=seeds), 2).reply is Reply.UNDETERMINED
