from __future__ import annotations

import torch

from secede.experiments.measure import Answers, Measured, membership
from secede.verification.accuracy import Evidence
from secede.verification.score import Score


def evidence(confidence: float, count: int = 60, classes: int = 3) -> Evidence:
    """Answers that are right with a logit of `confidence`, spread a little."""
    labels = torch.arange(count) % classes
    spread = torch.linspace(0, 0.5, count)[:, None]
    logits = (confidence + spread) * torch.nn.functional.one_hot(labels, classes)
    return Evidence(logits.float(), labels)


def answers(*, leaver: float, others: float = 1.0) -> Answers:
    return Answers(
        leaver=evidence(leaver),
        nonmembers=evidence(others),
        members=evidence(6.0),
        test=evidence(1.0),
        mean_training_loss=0.05,
    )


def test_a_model_that_kept_the_leaver_is_told_from_one_that_did_not() -> None:
    kept, forgot = answers(leaver=6.0), answers(leaver=1.0)
    found = membership(kept, {"fedavg@1": kept, "retrain@1": forgot}, seed=0)
    for attack in ("yeom", "shokri"):
        kept_rate = found["fedavg@1"][attack]["member_rate"]["value"]  # type: ignore[index]
        forgot_rate = found["retrain@1"][attack]["member_rate"]["value"]  # type: ignore[index]
        assert (kept_rate, forgot_rate) == (1.0, 0.0), attack
        assert found["fedavg@1"][attack]["nonmember_accuracy"]["value"] == 1.0  # type: ignore[index]


def test_attacks_are_judged_on_the_half_that_did_not_teach() -> None:
    one = answers(leaver=1.0)
    found = membership(one, {"x": one}, seed=0)
    assert found["x"]["shokri"]["nonmember_accuracy"]["count"] == 30  # type: ignore[index]


def test_evidence_files_hold_all_that_the_attacks_need() -> None:
    one = answers(leaver=2.0)
    again = Answers.of_tensors(one.tensors())
    assert membership(again, {"x": again}, seed=0) == membership(one, {"x": one}, seed=0)


def test_scores_are_compared_sample_by_sample() -> None:
    here = Measured({"a": Score(0.5, 4)}, {"a": torch.tensor([True, True, False, False])}, {})
    there = Measured({"a": Score(0.75, 4)}, {"a": torch.tensor([False, True, True, True])}, {})
    assert here.record(None) == {"a": {"value": 0.5, "count": 4}}
    expected = {"value": 0.5, "count": 4, "reference": 0.75, "gained": 1, "lost": 2}
    assert here.record(there) == {"a": expected}
