from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness import servers
from secede import state as states
from secede.data.samples import Samples
from secede.errors import ConfigError, StateError
from secede.federation.engine import Batch, LocalTraining
from secede.unlearning.method import LocalTask, Server
from secede.unlearning.methods.second_choice import SecondChoice
from secede.unlearning.steps.own_labels import REACH, Teacher


def task_of(model: nn.Module, batches: list[Batch], reference: dict[str, Tensor]) -> LocalTask:
    return LocalTask(
        reference=reference,
        own_state=reference,
        global_state=reference,
        model=model,
        fresh_model=lambda _: model,
        batches=lambda _size, _number: batches,
        loss=nn.functional.cross_entropy,
        training=LocalTraining(learning_rate=1.0),
    )


@pytest.fixture
def three_class_task() -> LocalTask:
    # One sample x = 1 of class 2; the reference's logits are (0, ln 2, ln 3).
    reference = {"weight": torch.tensor([[0.0], [math.log(2)], [math.log(3)]])}
    return task_of(nn.Linear(1, 3, bias=False), [(torch.ones(1, 1), torch.tensor([2]))], reference)


def once(**settings: Any) -> SecondChoice:
    """A single pass, however few steps that is."""
    return SecondChoice(epochs=1, min_steps=1, **settings)


def weight_for(reach: float) -> float:
    """The weight p of a leaver that first looks so far: REACH p / (1 - p) = reach."""
    return reach / (REACH + reach)


def test_one_step_matches_the_hand_sum(three_class_task: LocalTask) -> None:
    # softmax(0, ln2, ln3) = (1, 2, 3) / 6, the target is (1/3, 2/3, 0), and the step goes along
    # target - softmax = (1/6, 1/3, -1/2).
    result = once(labels="all").unlearn(three_class_task)
    expected = torch.tensor([[1 / 6], [math.log(2) + 1 / 3], [math.log(3) - 1 / 2]])
    torch.testing.assert_close(result.state["weight"], expected)
    assert result.report.distance_to_reference == pytest.approx(math.sqrt(1 / 36 + 1 / 9 + 1 / 4))


def test_a_further_step_teaches_what_the_reference_says_from_elsewhere(
    three_class_task: LocalTask,
) -> None:
    # It stands at equal logits, (1, 1, 1) / 3; the target is still w_ref's (1/3, 2/3, 0).
    start = {"weight": torch.zeros(3, 1)}
    result = once(labels="all").unlearn_again(three_class_task, start, max_steps=1)
    torch.testing.assert_close(result.state["weight"], torch.tensor([[0.0], [1 / 3], [-1 / 3]]))
    logits = torch.tensor([0.0, math.log(2), math.log(3)])
    moved = (torch.tensor([0.0, 1 / 3, -1 / 3]) - logits).norm()
    assert result.report.distance_to_reference == pytest.approx(float(moved))


def test_a_further_step_looks_beyond_from_the_reference_and_not_from_where_it_stands(
    three_class_task: LocalTask,
) -> None:
    # As in the next test m is what the label has beyond w_ref, so its target is (1 - m) / 3, (1 -
    # m) 2 / 3 and m; it stands at thirds, and the step is the difference.
    own = {"weight": three_class_task.reference["weight"] + torch.tensor([[0.0], [0.0], [0.5]])}
    task = replace(three_class_task, own_state=own, own_weight=weight_for(2))
    found = once().unlearn_again(task, {"weight": torch.zeros(3, 1)}, max_steps=1)
    m = (3 / math.e) / (3 + 3 / math.e)
    step = torch.tensor([[(1 - m) / 3], [2 * (1 - m) / 3], [m]]) - 1 / 3
    torch.testing.assert_close(found.state["weight"], step)


def test_a_further_step_ends_at_chance_or_when_its_steps_are_used_up(
    three_class_task: LocalTask,
) -> None:
    passes = list[int]()

    def batches(_size: int, number: int) -> list[Batch]:
        passes.append(number)
        return [(torch.ones(1, 1), torch.tensor([2]))]

    task = replace(three_class_task, batches=batches)
    step = SecondChoice(labels="all", epochs=2, min_steps=1)
    # At w_ref the label is the answer: all its steps; where another class is, none but the first.
    long = step.unlearn_again(task, task.reference, max_steps=1)
    assert (long.report.steps, long.report.ended_by) == (1, "max-steps")
    there = {"weight": torch.tensor([[5.0], [0.0], [0.0]])}
    short = step.unlearn_again(task, there, max_steps=9)
    assert (short.report.steps, short.report.ended_by) == (1, "chance")
    # Measured once before each; then passes that the first step, of two, has not taken.
    assert passes == [0, 3, 0, 3]


def test_a_further_step_need_not_go_over_all_samples(three_class_task: LocalTask) -> None:
    # Eight batches, so that it looks after each; another class is answered from the start.
    samples = [(torch.ones(1, 1), torch.tensor([2]))] * 8
    task = replace(three_class_task, batches=lambda _size, _number: samples)
    step = SecondChoice(labels="all", epochs=1, min_steps=1)
    there = {"weight": torch.tensor([[5.0], [0.0], [0.0]])}
    found = step.unlearn_again(task, there, max_steps=9)
    assert (found.report.steps, found.report.ended_by) == (1, "chance")


def test_a_label_is_lowered_to_what_it_would_be_beyond_the_reference(
    three_class_task: LocalTask,
) -> None:
    # The own state has the label's logit 1/2 higher, so taken back twice it is one lower: 3/e
    # beside 1 and 2. The target gives the label m = (3/e) / (3 + 3/e) and splits the rest 1 : 2.
    own = {"weight": three_class_task.reference["weight"] + torch.tensor([[0.0], [0.0], [0.5]])}
    task = replace(three_class_task, own_state=own, own_weight=weight_for(2))
    result = once().unlearn(task)
    m = (3 / math.e) / (3 + 3 / math.e)
    step = torch.tensor([[(1 - m) / 3 - 1 / 6], [2 * (1 - m) / 3 - 1 / 3], [m - 1 / 2]])
    torch.testing.assert_close(result.state["weight"], task.reference["weight"] + step)
    assert result.report.reach == pytest.approx(2)
    assert result.report.own_share == pytest.approx(1 - 2 * m)


@pytest.mark.parametrize(("weight", "first"), [(0.2, 4.0), (0.5, 16.0), (0.0, 1.0), (None, 1.0)])
def test_the_more_the_leaver_weighs_the_further_back_it_goes(
    three_class_task: LocalTask, weight: float | None, first: float
) -> None:
    own = {"weight": three_class_task.reference["weight"] + torch.tensor([[0.0], [0.0], [2.0]])}
    task = replace(three_class_task, own_state=own, own_weight=weight)
    assert once(labels="own").unlearn(task).report.reach == pytest.approx(first)


@pytest.mark.parametrize(
    ("weight", "keep"), [(None, 1.0), (0.1, 1.0), (0.2, 1.0), (0.35, 0.5), (0.5, 0.0), (0.7, 0.0)]
)
def test_the_heavier_the_leaver_the_less_a_label_keeps(
    three_class_task: LocalTask, weight: float | None, keep: float
) -> None:
    # Taken back, the label's logit is lower by 0.1 for each of the steps back: 16 p / (1 - p), or 1
    # where the weight is not known. It keeps a part of the probability that it has there.
    own = {"weight": three_class_task.reference["weight"] + torch.tensor([[0.0], [0.0], [0.1]])}
    task = replace(three_class_task, own_state=own, own_weight=weight)
    result = once(share=0.01).unlearn(task)
    reach = REACH * weight / (1 - weight) if weight else 1.0
    beyond = 3 * math.exp(-0.1 * reach)
    m = keep * beyond / (3 + beyond)
    step = torch.tensor([[(1 - m) / 3 - 1 / 6], [2 * (1 - m) / 3 - 1 / 3], [m - 1 / 2]])
    torch.testing.assert_close(result.state["weight"], task.reference["weight"] + step)
    assert (result.report.reach is None) == (keep == 0)


def test_what_a_heavy_leaver_gives_up_is_no_evidence_that_it_is_its_own(
    three_class_task: LocalTask,
) -> None:
    own = {"weight": three_class_task.reference["weight"] + torch.tensor([[0.0], [0.0], [1e-6]])}
    report = once().unlearn(replace(three_class_task, own_state=own, own_weight=0.4)).report
    assert report.ended_by == "nothing-own"
    assert report.own_share == pytest.approx(0, abs=1e-3)


def test_no_label_is_lowered_below_what_it_has_by_nature(three_class_task: LocalTask) -> None:
    # 60 samples of class 2 and 60 of class 1, all answered (1, 2, 3) / 6. On the others' samples
    # class 2 has 1/2, more than chance, and class 1 has 1/3: both floors are 1/3, as twice 1/3 of
    # the answers would be more than half. Label 2 is lowered from 1/2 to 1/3, which leaves (2, 4)
    # / 9 to the others; label 1 has 1/3 and stays. The mean of (1/18, 1/9, -1/6) and 0 is the step.
    batch = (torch.ones(120, 1), torch.tensor([2, 1] * 60))
    task = replace(three_class_task, batches=lambda _size, _number: [batch])
    found = once(labels="all").unlearn(task).state["weight"] - task.reference["weight"]
    torch.testing.assert_close(found, torch.tensor([[1 / 36], [1 / 18], [-1 / 12]]))
    sunk = once(labels="all", floor=False).unlearn(task)  # targets (1/3, 2/3, 0) and (1/4, 0, 3/4)
    step = torch.tensor([[7 / 24 - 1 / 6], [1 / 3 - 1 / 3], [3 / 8 - 1 / 2]])
    torch.testing.assert_close(sunk.state["weight"], task.reference["weight"] + step)


def test_it_looks_further_where_the_last_round_changed_little(three_class_task: LocalTask) -> None:
    # 1/32 of the way above: the label's logit has to be taken back 32 times over to be one lower,
    # and 2 ** 2.5 times to lose a tenth of its probability.
    own = {"weight": three_class_task.reference["weight"] + torch.tensor([[0.0], [0.0], [1 / 32]])}
    task = replace(three_class_task, own_state=own, own_weight=weight_for(1))
    report = once().unlearn(task).report

    def lost(reach: float) -> float:
        lowered = 3 * math.exp(-reach / 32)
        return 1 - 2 * lowered / (3 + lowered)

    assert report.reach is not None
    assert report.reach == pytest.approx(2 ** (round(2 * math.log2(report.reach)) / 2))
    assert lost(report.reach / math.sqrt(2)) < 0.1 <= lost(report.reach)
    assert report.own_share == pytest.approx(lost(report.reach), rel=1e-4)


@pytest.mark.parametrize(("size", "reach"), [(1e38, 64 / 2**4.5), (1e37, 64 / 2)])
def test_where_the_networks_numbers_end_it_looks_from_nearer(
    three_class_task: LocalTask, size: float, reach: float
) -> None:
    # Weights above 3.4e38 overflow, and infinity has no softmax; half an octave nearer each time,
    # the first that does not is looked from, and there the label is gone.
    way = torch.tensor([[-size], [0.0], [size]])
    own = {"weight": three_class_task.reference["weight"] + way}
    task = replace(three_class_task, own_state=own, own_weight=0.8)  # 16 · 0.8 / 0.2 = 64
    teacher = Teacher(task.model, task.reference)
    assert teacher.find_own_labels(task.own_state, task.own_weight, list(task.batches(1, 0)), 0.1)
    assert teacher.reach == pytest.approx(reach)
    assert teacher.own_share == pytest.approx(1)


def test_without_numbers_anywhere_nothing_is_claimed(three_class_task: LocalTask) -> None:
    own = {"weight": torch.tensor([[-math.inf], [0.0], [0.0]])}  # taken back: +inf
    task = replace(three_class_task, own_state=own, own_weight=0.2)
    with pytest.raises(StateError, match="labels = 'all'"):
        Teacher(task.model, task.reference).find_own_labels(
            task.own_state, task.own_weight, list(task.batches(1, 0)), 0.1
        )


def test_it_starts_at_the_global_model_if_told_so(three_class_task: LocalTask) -> None:
    elsewhere = {"weight": torch.tensor([[0.0], [0.0], [math.log(2)]])}
    task = replace(three_class_task, global_state=elsewhere)
    # softmax(0, 0, ln2) = (1, 1, 2) / 4, the target is (1/2, 1/2, 0).
    found = once(labels="all", begin="global").unlearn(task).state["weight"]
    torch.testing.assert_close(found, elsewhere["weight"] + torch.tensor([[0.25], [0.25], [-0.5]]))


def test_a_long_gradient_is_clipped(three_class_task: LocalTask) -> None:
    clipped = once(labels="all", clip=0.1).unlearn(three_class_task).report
    assert clipped.distance_to_reference == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("epochs", [1, 3])
def test_it_takes_as_many_epochs_as_it_is_told(three_class_task: LocalTask, epochs: int) -> None:
    slow = SecondChoice(
        labels="all", level=0.0, learning_rate=1e-6, epochs=epochs, min_steps=1
    ).unlearn(three_class_task)
    assert slow.report.steps == epochs


def test_a_label_that_the_others_share_is_held() -> None:
    # The own state knows the label less than the reference does: going on, it only grows.
    reference = {"weight": torch.tensor([[0.0], [2.0]])}
    task = task_of(nn.Linear(1, 2, bias=False), [(torch.ones(1, 1), torch.tensor([1]))], reference)
    # A second sample, which it made worse, is the one that goes.
    batch = (torch.tensor([[1.0], [-0.1]]), torch.tensor([1, 1]))
    own = {"weight": torch.tensor([[0.0], [1.0]])}
    both = replace(task, own_state=own, batches=lambda _size, _number: [batch])
    teacher = Teacher(both.model, reference)
    assert teacher.find_own_labels(both.own_state, weight_for(2), [batch], 0.01)
    targets = teacher(*batch)
    held, gone = targets.lost_probability().tolist()
    assert held == 0
    assert gone == pytest.approx(1 / (1 + math.exp(0.2)) - 1 / (1 + math.exp(0.4)))
    torch.testing.assert_close(
        targets.distribution(batch[1], targets.reference)[0],
        torch.tensor([0.0, 2.0]).softmax(dim=0),
    )


def test_it_trains_as_the_leaver_did_unless_told_otherwise(three_class_task: LocalTask) -> None:
    slower = replace(three_class_task, training=LocalTraining(learning_rate=0.5))
    half = once(labels="all").unlearn(slower).report.distance_to_reference
    told = once(labels="all", learning_rate=0.5).unlearn(three_class_task).report
    assert half == told.distance_to_reference == pytest.approx(math.sqrt(7 / 18) / 2)


def test_a_leaver_with_little_data_goes_over_it_more_often(three_class_task: LocalTask) -> None:
    # One batch is one step an epoch; level 0 is out of reach of a count, so all steps are taken.
    steps = SecondChoice(labels="all", level=0.0, learning_rate=1e-6).unlearn(three_class_task)
    assert steps.report.steps == 20


def test_dropout_is_silent_while_targets_follow_the_answers() -> None:
    reference = {"0.weight": torch.tensor([[0.0], [math.log(2)], [math.log(3)]])}
    model = nn.Sequential(nn.Linear(1, 3, bias=False), nn.Dropout(0.9))
    task = task_of(model, [(torch.ones(1, 1), torch.tensor([2]))], reference)
    found = once(labels="all").unlearn(task).state["0.weight"]
    expected = torch.tensor([[1 / 6], [math.log(2) + 1 / 3], [math.log(3) - 1 / 2]])
    torch.testing.assert_close(found, expected)
    dropout = model[1]
    assert isinstance(dropout, nn.Dropout)
    assert dropout.p == 0.9


def test_it_stops_once_the_own_accuracy_is_at_chance(three_class_task: LocalTask) -> None:
    # The first step makes class 1 the answer; the window after it finds no hit and ends it.
    result = SecondChoice(epochs=50, labels="all").unlearn(three_class_task)
    assert (result.report.steps, result.report.ended_by) == (2, "chance")
    assert result.report.accuracy == 0.0
    assert result.report.stop_accuracy == pytest.approx(1 / 3)


@pytest.mark.parametrize(("batches", "steps"), [(1, 1), (12, 12), (16, 16)])
def test_it_takes_an_epoch_even_if_the_labels_are_gone_before(
    three_class_task: LocalTask, batches: int, steps: int
) -> None:
    # The reference answers class 1 to all of it: the label is at 0 from the first step on.
    one = (torch.ones(1, 1), torch.tensor([0]))
    task = replace(three_class_task, batches=lambda _size, _number: [one] * batches)
    found = SecondChoice(labels="all", floor=False).unlearn(task).report
    assert (found.ended_by, found.steps) == ("chance", steps)


def test_it_looks_after_each_eighth_of_an_epoch_whether_the_labels_are_gone(
    three_class_task: LocalTask,
) -> None:
    one = (torch.ones(1, 1), torch.tensor([2]))
    task = replace(three_class_task, batches=lambda _size, _number: [one] * 16)
    slow = SecondChoice(labels="all", floor=False, learning_rate=0.025, momentum=0.0, epochs=9)
    # Steps go along (1/3, 2/3, 0) minus the softmax until class 1 is the answer.
    logits, taken = [0.0, math.log(2), math.log(3)], 0
    while logits[2] >= logits[1]:
        sums = sum(map(math.exp, logits))
        target = (1 / 3, 2 / 3, 0.0)
        logits = [z + 0.025 * (t - math.exp(z) / sums) for z, t in zip(logits, target, strict=True)]
        taken += 1
    assert 16 < taken < 30  # in the second epoch
    # Windows are of 16/8 = 2 steps; the first that finds no hit at all is over so many later.
    found = slow.unlearn(task).report
    assert (found.ended_by, found.steps) == ("chance", 2 * math.ceil(taken / 2) + 2)


def test_a_ball_bounds_the_way_from_the_reference(three_class_task: LocalTask) -> None:
    free = once(labels="all").unlearn(three_class_task)
    held = once(labels="all", radius=0.1).unlearn(three_class_task)
    assert states.distance(held.state, three_class_task.reference) == pytest.approx(0.1)
    assert (free.report.projections, held.report.projections) == (0, 1)
    assert held.report.distance_to_reference == 0.1
    assert held.report.loss != free.report.loss  # measured where it was pulled to


def test_it_unlearns_the_leavers_samples_and_repeats_to_the_bit() -> None:
    first, second = (servers.erase(SecondChoice(), planted(), rounds=2) for _ in range(2))
    assert states.digest(first[1]) == states.digest(second[1])
    before, after = (accuracy(planted(), state) for state in (planted().global_state, first[1]))
    assert before > 0.8
    assert after < 0.4
    states.check_finite(first[1])


def planted() -> Server:
    """The leaver alone has images of class 2."""
    clients = [servers.blobs(90, seed=i) for i in range(3)]
    others = [Samples(c.x[c.y != 2], c.y[c.y != 2]) for c in clients[1:]]
    return servers.server(clients=[clients[0], *others], rounds=12)


def accuracy(server: Server, state: states.State) -> float:
    """Return how many new images of class 2 are recognised."""
    fresh = servers.blobs(90, seed=50)
    model = server.fresh_model()
    states.load_into(model, state)
    with torch.no_grad():
        return float((model(fresh.x[fresh.y == 2]).argmax(dim=1) == 2).float().mean())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"epochs": 0}, "epochs must be positive, got 0"),
        ({"share": 0.0}, "share must be above 0 and below 1, got 0.0"),
        ({"level": 1.0}, "level must be at least 0 and below 1, got 1.0"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"radius": -1.0}, "radius must be positive, got -1.0"),
        ({"min_steps": 0}, "min_steps must be positive, got 0"),
        ({"labels": "Own"}, "labels must be one of weighed, own, all, got 'Own'"),
        ({"begin": "here"}, "begin must be one of reference, global, got 'here'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        SecondChoice(**settings)


def test_a_leaver_that_changed_nothing_uploads_the_reference(three_class_task: LocalTask) -> None:
    # Taken back 64 times over, the label is less than a thousandth lower: nothing of it is its own.
    own = {"weight": three_class_task.reference["weight"] + torch.tensor([[0.0], [0.0], [1e-5]])}
    result = SecondChoice().unlearn(replace(three_class_task, own_state=own))
    assert (result.report.steps, result.report.ended_by) == (0, "nothing-own")
    assert states.digest(result.state) == states.digest(three_class_task.reference)


def test_an_own_state_that_tells_nothing_is_refused(three_class_task: LocalTask) -> None:
    with pytest.raises(StateError, match=r"cannot tell which labels are the leaver.s own"):
        SecondChoice().unlearn(three_class_task)


def test_one_class_has_no_second_choice() -> None:
    batch = (torch.ones(1, 1), torch.tensor([0]))
    task = task_of(nn.Linear(1, 1, bias=False), [batch], {"weight": torch.ones(1, 1)})
    with pytest.raises(ConfigError, match="needs at least two classes"):
        SecondChoice().unlearn(task)
