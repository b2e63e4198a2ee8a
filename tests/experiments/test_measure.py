from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness import tiny
from secede.data.samples import Samples
from secede.experiments import presets
from secede.experiments.measure import AttackInputs, Examiner, Measured, membership
from secede.experiments.setup import Federation, federate, load_dataset
from secede.seeding import generator
from secede.verification.accuracy import Evidence, evaluate
from secede.verification.score import Score

DRAWING = """

class Noise(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x)  # always on: a common slip
"""


def evidence(confidence: float, count: int = 60, classes: int = 3) -> Evidence:
    """AttackInputs that are right with a logit of `confidence`, spread a little."""
    labels = torch.arange(count) % classes
    spread = torch.linspace(0, 0.5, count)[:, None]
    logits = (confidence + spread) * torch.nn.functional.one_hot(labels, classes)
    return Evidence(logits.float(), labels)


def answers(*, leaver: float, others: float = 1.0) -> AttackInputs:
    return AttackInputs(
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


def test_non_members_that_are_some_of_the_test_samples_are_halved_with_them() -> None:
    whole = answers(leaver=1.0)
    places = torch.arange(0, 60, 2)
    few = Evidence(whole.nonmembers.logits[places], whole.nonmembers.labels[places])
    some = replace(whole, nonmembers=few, nonmember_indices=places)
    judge = torch.tensor([1, 2, 4, 59])
    assert torch.equal(some.nonmembers_among(judge).logits, whole.nonmembers.logits[[2, 4]])
    assert torch.equal(whole.nonmembers_among(judge).logits, whole.nonmembers.logits[judge])
    count = membership(some, {"x": some}, seed=0)["x"]["yeom"]["nonmember_accuracy"]["count"]  # type: ignore[index]
    assert 10 <= count <= 20
    back = AttackInputs.from_tensors(some.to_tensors())
    assert back.nonmember_indices is not None
    assert torch.equal(back.nonmember_indices, places)
    assert AttackInputs.from_tensors(whole.to_tensors()).nonmember_indices is None


def test_evidence_files_hold_all_that_the_attacks_need() -> None:
    one = answers(leaver=2.0)
    again = AttackInputs.from_tensors(one.to_tensors())
    assert membership(again, {"x": again}, seed=0) == membership(one, {"x": one}, seed=0)


def test_scores_are_compared_sample_by_sample() -> None:
    here = Measured({"a": Score(0.5, 4)}, {"a": torch.tensor([True, True, False, False])}, {})
    there = Measured({"a": Score(0.75, 4)}, {"a": torch.tensor([False, True, True, True])}, {})
    assert here.to_record(None) == {"a": {"value": 0.5, "count": 4}}
    expected = {"value": 0.5, "count": 4, "reference": 0.75, "gained": 1, "lost": 2}
    assert here.to_record(there) == {"a": expected}


def tiny_federation(folder: Path, *, noise: str = "") -> Federation:
    config = presets.load(str(tiny.write(folder, tiny.CONFIG + 'device = "cpu"\n')))
    if noise:
        model = tiny.MODEL.replace("nn.ReLU()", noise)
        (folder / "tiny_model.py").write_text(model + DRAWING)
    return federate(config, load_dataset(config), 0, search=folder)


def close(found: Evidence, model: torch.nn.Module, samples: Samples) -> None:
    expected = evaluate(model, samples)
    torch.testing.assert_close(found.logits, expected.logits)
    assert torch.equal(found.labels, expected.labels)


@pytest.mark.parametrize("trained", [(0, 1, 2), (1, 2)])
def test_answers_are_those_of_every_set_alone(tmp_path: Path, trained: tuple[int, ...]) -> None:
    federation = tiny_federation(tmp_path)
    clients, state = federation.engine.clients, federation.engine.initial_state("some")
    examiner = Examiner(federation, 0)
    examined = examiner.examine(state)
    found = examiner.attack_inputs(examined, trained)
    model = federation.engine.model(state)
    close(examined.probe, model, federation.probe.samples)
    close(found.leaver, model, clients[0])
    assert len(examined.retained.labels) == 100  # all there are; at most WATCHED
    close(found.nonmembers, model, federation.nonmembers)
    close(found.test, model, federation.test)
    pool = Samples(torch.cat([clients[1].x, clients[2].x]), torch.cat([clients[1].y, clients[2].y]))
    order = torch.randperm(len(pool), generator=generator(0, "shadow members"))
    close(found.members, model, pool.take(order))
    losses = torch.cat([evaluate(model, clients[client]).losses for client in trained])
    assert found.mean_training_loss == pytest.approx(float(losses.mean()), rel=1e-5)


def test_what_is_measured_is_read_off_the_answers(tmp_path: Path) -> None:
    federation = tiny_federation(tmp_path)
    examiner = Examiner(federation, 0)
    examined = examiner.examine(federation.engine.initial_state("some"))
    found = examiner.measure(examined)
    assert found.shares["clean_accuracy"] == examined.test.accuracy()
    assert found.hits["clean_accuracy"].sum() == round(60 * examined.test.accuracy().value)
    assert found.own == {
        "leaver_accuracy": examined.leaver.accuracy(),
        "leaver_loss": examined.leaver.loss(),
        "retained_accuracy": examined.retained.accuracy(),
    }
    for name, mask in federation.probe.measures.items():
        assert found.shares[name] == examined.probe.accuracy(mask)


def test_a_model_that_draws_in_evaluation_answers_the_same_and_disturbs_nobody(
    tmp_path: Path,
) -> None:
    federation = tiny_federation(tmp_path, noise="Noise()")
    examiner, state = Examiner(federation, 0), federation.engine.initial_state("some")
    before = torch.get_rng_state()
    first = examiner.examine(state)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    again = examiner.examine(state)
    assert torch.equal(first.test.logits, again.test.logits)
