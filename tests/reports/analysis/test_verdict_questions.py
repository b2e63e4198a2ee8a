from collections.abc import Callable
from dataclasses import replace

import pytest

from secede.reports.analysis.answers import Reply
from secede.reports.analysis.forgotten import compare_with_retrained, judge_forgotten
from secede.reports.analysis.verdict import judge_cheaper, judge_useful
from secede.reports.records.runs import Run

Make = Callable[..., Run]

CLEAN = {"retrain": [0.1, 0.5, 0.9, 0.96, 0.98], "projected-ascent": [0.2, 0.95, 0.97]}


def probed(make_run: Make, erased: float, *, retrained: float = 0.01, before: float = 0.9) -> Run:
    curves = {
        "fedavg": [before] * 5,
        "retrain": [retrained] * 5,
        "projected-ascent": [0.0, 0.5, erased],
    }
    return make_run(rounds=4, post_rounds=2, fixed={"attack_success": curves})


@pytest.mark.parametrize(
    ("erased", "reply"), [(0.02, Reply.YES), (0.05, Reply.NO), (0.0, Reply.YES)]
)
def test_a_backdoor_is_forgotten_within_three_points_above_retraining(
    make_run: Make, erased: float, reply: Reply
) -> None:
    assert judge_forgotten(probed(make_run, erased), 2).reply is reply


def test_a_backdoor_far_rarer_than_after_retraining_is_forgotten(make_run: Make) -> None:
    assert judge_forgotten(probed(make_run, 0.0, retrained=0.2), 2).reply is Reply.YES


@pytest.mark.parametrize(("trained", "reply"), [(0.13, Reply.UNDETERMINED), (0.3, Reply.YES)])
def test_where_nothing_was_learnt_nothing_is_said_to_be_forgotten_or_kept(
    make_run: Make, trained: float, reply: Reply
) -> None:
    curves = {"fedavg": [0.9] * 5, "retrain": [0.01] * 5, "projected-ascent": [0.0, 0.5, 0.02]}
    clean = {"fedavg": [0.1, 0.1, 0.11, 0.12, trained], "retrain": [0.1] * 5}
    clean["projected-ascent"] = [0.1] * 3
    scores = {"attack_success": curves, "clean_accuracy": clean}
    run = make_run(rounds=4, post_rounds=2, fixed=scores)
    for answer in (judge_forgotten(run, 2), judge_useful(run, 2)):
        assert answer.reply is reply
        told = "10.0 % untrained and 13.0 % before" in answer.sentence.replace("\u00a0", " ")
        assert told is (reply is Reply.UNDETERMINED)


def test_the_sentence_holds_the_numbers(make_run: Make) -> None:
    answer = judge_forgotten(probed(make_run, 0.02), 2)
    text = answer.sentence.replace("\u00a0", " ")
    assert text == (
        "Attack success is 2.0 % after 2 rounds of post-training, 1.0 % retrained and 90.0 % "
        "before erasing: +1.0 points from retraining, where 3 are allowed. Loss on the leaver's "
        "samples is 2.960 after 2 rounds of post-training, 2.980 retrained and 1.200 before "
        "erasing: 0.99× retraining's, where 0.80 to 1.25 is allowed. The margins are fixed: this "
        "run has no second retraining to take them from."
    )


@pytest.mark.parametrize(
    ("later", "said"), [(0.15, " After 3 rounds the leaver is no longer forgotten."), (0.02, None)]
)
def test_what_comes_back_after_the_round_that_is_judged_is_said(
    make_run: Make, later: float, said: str | None
) -> None:
    curves = {"fedavg": [0.9] * 5, "retrain": [0.01] * 5}
    curves["projected-ascent"] = [0.0, 0.5, 0.02, later]
    run = make_run(rounds=4, post_rounds=3, fixed={"attack_success": curves})
    answer = judge_forgotten(run, 2)
    assert answer.reply is Reply.YES
    text = answer.sentence.replace("\u00a0", " ")
    assert text.endswith(said) if said else "longer" not in text


def test_seeds_that_disagree_leave_it_undetermined(make_run: Make) -> None:
    def spread(seed: int, arm: str, round: int) -> dict[str, float]:
        values = {"fedavg": 0.9, "retrain": 0.01, "projected-ascent": 0.01 + 0.03 * seed}
        return {"attack_success": values.get(arm, 0.5)}

    run = make_run(rounds=4, post_rounds=2, override=spread)
    assert judge_forgotten(run, 2).reply is Reply.UNDETERMINED


def test_a_probe_that_never_saw_the_leaver_determines_nothing(make_run: Make) -> None:
    answer = judge_forgotten(probed(make_run, 0.01, before=0.02), 2)
    assert answer.reply is Reply.UNDETERMINED
    assert "even before erasing it hardly shows the leaver" in answer.sentence


def test_flipped_images_must_not_be_known_far_less_than_after_retraining(make_run: Make) -> None:
    curves = {"fedavg": [0.87] * 5, "retrain": [0.41] * 5, "projected-ascent": [0.1, 0.3, 0.3]}
    run = make_run(scenario="flipped", rounds=4, post_rounds=2, fixed={"flipped_accuracy": curves})
    answer = judge_forgotten(run, 2)
    assert answer.reply is Reply.NO
    assert "it went further than retraining does" in answer.sentence


def clean_leaver(make_run: Make, loss: float, *, seeds: int = 3, before: float = 0.031) -> Run:
    losses = {
        "fedavg": [before] * 5,
        "retrain": [0.049] * 5,
        "projected-ascent": [2.0, 0.1, loss],
    }
    same = {arm: [0.985] * 5 for arm in losses}
    return make_run(
        scenario="clean",
        seeds=range(seeds),
        rounds=4,
        post_rounds=2,
        fixed={"leaver_loss": losses, "leaver_accuracy": same},
    )


@pytest.mark.parametrize(
    ("loss", "reply"),
    [(0.052, Reply.YES), (0.031, Reply.NO), (0.07, Reply.NO), (0.041, Reply.YES)],
)
def test_a_clean_leaver_is_judged_by_the_loss_on_its_samples(
    make_run: Make, loss: float, reply: Reply
) -> None:
    assert judge_forgotten(clean_leaver(make_run, loss), 2).reply is reply


def test_a_clean_leaver_of_one_seed_stays_undetermined(make_run: Make) -> None:
    assert judge_forgotten(clean_leaver(make_run, 0.049, seeds=1), 2).reply is Reply.UNDETERMINED


def test_a_clean_leaver_that_never_showed_determines_nothing(make_run: Make) -> None:
    answer = judge_forgotten(clean_leaver(make_run, 0.049, before=0.048), 2)
    assert answer.reply is Reply.UNDETERMINED
    assert "even before erasing it hardly shows the leaver" in answer.sentence


def test_a_loss_that_is_not_finite_is_said_and_determines_nothing(make_run: Make) -> None:
    answer = judge_forgotten(clean_leaver(make_run, float("inf")), 2)
    assert answer.reply is Reply.UNDETERMINED
    assert "not finite" in answer.sentence


@pytest.mark.parametrize(
    ("erased", "reply"), [(0.965, Reply.YES), (0.99, Reply.YES), (0.95, Reply.NO)]
)
def test_a_model_is_useful_within_two_points_of_retraining(
    make_run: Make, erased: float, reply: Reply
) -> None:
    clean = {**CLEAN, "projected-ascent": [0.2, 0.95, erased]}
    run = make_run(rounds=4, post_rounds=2, fixed={"clean_accuracy": clean})
    answer = judge_useful(run, 2)
    assert answer.reply is reply
    assert "98.0\u00a0% after 4 rounds of retraining" in answer.sentence


def test_one_seed_is_judged_by_the_sampling_of_its_test_set(make_run: Make) -> None:
    # 2.1 points below with 10,000 images each: the interval reaches over the margin of 2.
    clean = {**CLEAN, "projected-ascent": [0.2, 0.95, 0.959]}
    run = make_run(seeds=(0,), rounds=4, post_rounds=2, fixed={"clean_accuracy": clean})
    assert judge_useful(run, 2).reply is Reply.UNDETERMINED


def test_costs_are_compared_at_the_same_clean_accuracy(make_run: Make) -> None:
    run = make_run(rounds=4, post_rounds=2, fixed={"clean_accuracy": CLEAN})
    answer = judge_cheaper(run, 2)
    assert answer.reply is Reply.YES
    assert answer.sentence.replace("\u00a0", " ") == (
        "To 97.0 % clean accuracy, erasing took 2 rounds and 59.9 MB of uploads; fair "
        "retraining 4 rounds and 106.5 MB of uploads: 1.8× as much."
    )


def test_retraining_that_is_as_quick_is_said_honestly(make_run: Make) -> None:
    clean = {"retrain": [0.1, 0.96, 0.97, 0.97, 0.97], "projected-ascent": [0.2, 0.95, 0.97]}
    run = make_run(rounds=4, post_rounds=2, fixed={"clean_accuracy": clean})
    answer = judge_cheaper(run, 2)
    assert answer.reply is Reply.NO
    assert answer.sentence.endswith("0.9× as much, so erasing is not the cheaper way here.")


def test_a_lower_bound_below_one_says_nothing_of_what_is_cheaper(make_run: Make) -> None:
    clean = {"retrain": [0.1] * 2, "projected-ascent": [0.2, 0.95, 0.97]}
    run = make_run(rounds=1, post_rounds=2, fixed={"clean_accuracy": clean})
    answer = judge_cheaper(run, 2)
    assert answer.reply is Reply.UNDETERMINED
    assert answer.sentence.endswith(": at least 0.4× as much.")


def test_retraining_that_never_gets_there_gives_a_lower_bound(make_run: Make) -> None:
    clean = {"retrain": [0.1] * 5, "projected-ascent": [0.2, 0.95, 0.97]}
    run = make_run(rounds=4, post_rounds=2, fixed={"clean_accuracy": clean})
    answer = judge_cheaper(run, 2)
    assert answer.reply is Reply.YES
    assert "did not reach it in its 4 rounds: at least 1.8×" in answer.sentence


def test_seeds_in_which_retraining_never_got_there_are_counted(make_run: Make) -> None:
    def late(seed: int, arm: str, round: int) -> dict[str, float]:
        if arm == "retrain" and seed == 1:
            return {"clean_accuracy": 0.5}
        return {"clean_accuracy": CLEAN[arm][round]} if arm in CLEAN else {}

    answer = judge_cheaper(make_run(rounds=4, post_rounds=2, override=late), 2)
    assert "(never in 1 of 3 seeds): at least 1.8×" in answer.sentence


def test_seeds_that_disagree_about_the_cost_leave_it_undetermined(make_run: Make) -> None:
    def uneven(seed: int, arm: str, round: int) -> dict[str, float]:
        # Retraining gets there in round 2 (8 uploads against 9), in one seed in round 4 (16).
        quick = [0.1, 0.5, 0.97, 0.97, 0.97]
        slow = [0.1, 0.5, 0.9, 0.9, 0.97]
        curves = {
            "retrain": slow if seed == 1 else quick,
            "projected-ascent": CLEAN["projected-ascent"],
        }
        return {"clean_accuracy": curves[arm][round]} if arm in curves else {}

    answer = judge_cheaper(make_run(rounds=4, post_rounds=2, override=uneven), 2)
    assert answer.reply is Reply.UNDETERMINED
    assert "1.2×" in answer.sentence


def test_it_says_when_fine_tuning_alone_forgets_as_well(make_run: Make) -> None:
    curves = {
        "fedavg": [0.9] * 5,
        "retrain": [0.01] * 5,
        "fine-tune": [0.9, 0.1, 0.01],
        "projected-ascent": [0.0, 0.01, 0.01],
    }
    run = make_run(rounds=4, post_rounds=2, fixed={"attack_success": curves})
    assert "Fine-tuning alone does as well" in judge_forgotten(run, 2).sentence
    assert "Fine-tuning" not in judge_forgotten(probed(make_run, 0.02), 2).sentence


def test_a_climb_that_ran_out_of_epochs_names_the_keys(make_run: Make) -> None:
    key = "settings.projected-ascent.epochs"
    run = probed(make_run, 0.5)
    assert key not in judge_forgotten(run, 2).sentence
    assert key in judge_forgotten(out_of_epochs(run), 2).sentence


def out_of_epochs(run: Run) -> Run:
    steps = [seed.local_step for seed in run.seeds]
    seeds = [
        replace(seed, local_step=step and replace(step, ended_by="epochs"))
        for seed, step in zip(run.seeds, steps, strict=True)
    ]
    return replace(run, seeds=tuple(seeds))


def test_only_projected_ascent_is_said_to_climb(make_run: Make) -> None:
    curves = {
        "fedavg": [0.9] * 5,
        "retrain": [0.01] * 5,
        "fine-tune": [0.9, 0.1, 0.01],
        "second-choice": [0.0, 0.01, 0.01],
    }
    methods = ("second-choice", "projected-ascent", "fine-tune")
    run = make_run(rounds=4, post_rounds=2, methods=methods, fixed={"attack_success": curves})
    said = judge_forgotten(run, 2)
    assert said.reply is Reply.YES
    assert said.sentence.endswith("so this run does not show more than that was needed.")
    curves["second-choice"] = [0.5] * 3
    lost = make_run(rounds=4, post_rounds=2, methods=methods, fixed={"attack_success": curves})
    assert "climb" not in judge_forgotten(out_of_epochs(lost), 2).sentence


def test_fine_tuning_is_not_held_against_itself(make_run: Make) -> None:
    curves = {"fedavg": [0.9] * 5, "retrain": [0.01] * 5, "fine-tune": [0.0, 0.01, 0.01]}
    run = make_run(
        rounds=4, post_rounds=2, methods=("fine-tune",), fixed={"attack_success": curves}
    )
    answer = judge_forgotten(run, 2)
    assert answer.reply is Reply.YES
    assert "Fine-tuning" not in answer.sentence


def test_any_arm_is_held_to_the_margin_of_the_verdict(make_run: Make) -> None:
    run = probed(make_run, 0.02)
    assert (
        compare_with_retrained(run, "projected-ascent", 2)
        is judge_forgotten(run, 2).reply
        is Reply.YES
    )
    assert compare_with_retrained(run, "fedavg", 4) is Reply.NO
    clean = clean_leaver(make_run, 0.031)
    assert compare_with_retrained(clean, "projected-ascent", 2) is Reply.NO
    assert compare_with_retrained(clean, "retrain", 4) is Reply.YES


def test_an_accuracy_that_an_untrained_model_has_determines_no_cost(make_run: Make) -> None:
    curves = {"retrain": [0.3] * 5, "projected-ascent": [0.3] * 3}
    run = make_run(rounds=4, post_rounds=2, fixed={"clean_accuracy": curves})
    answer = judge_cheaper(run, 2)
    assert answer.reply is Reply.UNDETERMINED
    assert "an untrained model has that accuracy already" in answer.sentence
