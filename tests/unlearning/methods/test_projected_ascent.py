from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError, DataError, StateError
from secede.federation.engine import Batch
from secede.unlearning.method import LocalTask
from secede.unlearning.methods.projected_ascent import ProjectedAscent
from secede.unlearning.steps import stop_distance as tau


def linear() -> nn.Module:
    return nn.Linear(1, 2, bias=False)


def task_of(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    reference: dict[str, Tensor],
    own: dict[str, Tensor] | None = None,
) -> LocalTask:
    return LocalTask(
        reference=reference,
        own_state=own or reference,
        model=model,
        fresh_model=lambda _: linear(),
        batches=lambda _size, _number: batches,
        loss=nn.functional.cross_entropy,
    )


@pytest.fixture
def two_class_task() -> LocalTask:
    # One sample x = 1 of class 0, weights zero: softmax is (1/2, 1/2).
    batch = (torch.ones(1, 1), torch.tensor([0]))
    return task_of(linear(), [batch], reference={"weight": torch.zeros(2, 1)})


def ascent(**changes: object) -> ProjectedAscent:
    settings = {"radius": 9.0, "stop_distance": 9.0, "learning_rate": 1.0, "epochs": 1, **changes}
    return dataclasses.replace(ProjectedAscent(), **settings)  # type: ignore[arg-type]


def test_one_step_matches_the_hand_sum(two_class_task: LocalTask) -> None:
    # The loss gradient is (-1/2, 1/2), and ascent adds it.
    result = ascent().unlearn(two_class_task)
    torch.testing.assert_close(result.state["weight"], torch.tensor([[-0.5], [0.5]]))
    assert (result.report.steps, result.report.ended_by) == (1, "epochs")
    assert result.report.distance_to_reference == pytest.approx(math.sqrt(0.5))


def test_momentum_carries_the_first_step_into_the_second(two_class_task: LocalTask) -> None:
    # Second gradient: softmax of (-1/2, 1/2) is (q, 1-q) with q = 1/(1+e), gradient (q-1, 1-q).
    # Velocity 0.9 * (-1/2) + (q - 1), so the weight is -1/2 - 0.45 + q - 1.
    q = 1 / (1 + math.e)
    result = ascent(epochs=2).unlearn(two_class_task)
    assert result.state["weight"][0].item() == pytest.approx(q - 1.95, abs=1e-6)


def test_the_gradient_is_clipped_to_its_norm(two_class_task: LocalTask) -> None:
    # The gradient's norm is sqrt(1/2); clipped to 0.1 the step has that length.
    result = ascent(clip=0.1).unlearn(two_class_task)
    assert result.report.distance_to_reference == pytest.approx(0.1, abs=1e-5)


def test_a_step_beyond_the_ball_is_pulled_back_onto_it(two_class_task: LocalTask) -> None:
    result = ascent(radius=0.25, epochs=3).unlearn(two_class_task)
    expected = 0.25 / math.sqrt(2)
    torch.testing.assert_close(result.state["weight"], torch.tensor([[-expected], [expected]]))
    assert result.report.projections == 3


def test_it_stops_once_the_distance_is_exceeded_not_reached(two_class_task: LocalTask) -> None:
    first = math.sqrt(0.5)
    assert ascent(stop_distance=first - 1e-4, epochs=5).unlearn(two_class_task).report.steps == 1
    result = ascent(stop_distance=first + 1e-4, epochs=5).unlearn(two_class_task)
    assert (result.report.steps, result.report.ended_by) == (2, "stop-distance")


def test_it_can_stop_at_the_loss_of_guessing(two_class_task: LocalTask) -> None:
    # The loss starts at ln 2, which is that of guessing; the first step is beyond it.
    result = ascent(stop="loss", stop_distance=None, epochs=5).unlearn(two_class_task)
    assert (result.report.steps, result.report.ended_by) == (1, "stop-loss")
    # A surer start: logits 1 and -1, so the loss ln(1 + e^-2) has to climb from 0.13 to 0.69.
    reference = {"weight": torch.tensor([[1.0], [-1.0]])}
    sure = dataclasses.replace(two_class_task, reference=reference)
    climbed = ascent(stop="loss", stop_distance=None, epochs=99).unlearn(sure).report
    assert climbed.steps > 1
    assert climbed.loss is not None
    assert climbed.loss >= math.log(2)


def test_the_stop_measures_from_the_own_state_not_from_the_reference() -> None:
    batch = (torch.ones(1, 1), torch.tensor([0]))
    own = {"weight": torch.tensor([[3.0], [-3.0]])}
    task = task_of(linear(), [batch], reference={"weight": torch.zeros(2, 1)}, own=own)
    # It starts sqrt(18) = 4.24 away; the first step moves to sqrt(2 * 3.5^2) = 4.95.
    result = ascent(stop_distance=4.5, epochs=5).unlearn(task)
    assert result.report.steps == 1
    assert result.report.distance_to_own == pytest.approx(math.sqrt(24.5))


def cloud(seed: int, count: int = 64) -> tuple[nn.Module, list[Batch], dict[str, Tensor]]:
    """A two-class problem that a linear model has learnt."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (count,), generator=generator)
    inputs = torch.randn(count, 4, generator=generator) + 0.7 * (labels[:, None] * 2.0 - 1)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.copy_(0.1 * torch.stack([-torch.ones(4), torch.ones(4)]))
        model.bias.zero_()
    batches = list(zip(inputs.split(16), labels.split(16), strict=True))
    return model, batches, states.of(model)


def cloud_task(seed: int = 0) -> LocalTask:
    model, batches, reference = cloud(seed)
    return dataclasses.replace(
        task_of(model, batches, reference=reference), fresh_model=lambda _: nn.Linear(4, 2)
    )


def test_the_accuracy_stop_ends_at_chance_by_default() -> None:
    result = ascent(stop="accuracy", stop_distance=None, learning_rate=0.1, epochs=50).unlearn(
        cloud_task()
    )
    assert result.report.ended_by == "stop-accuracy"
    assert result.report.stop_accuracy == 0.5
    assert result.report.accuracy is not None
    assert result.report.accuracy <= 0.5
    later = ascent(
        stop="accuracy", stop_accuracy=0.2, stop_distance=None, learning_rate=0.002, epochs=50
    ).unlearn(cloud_task())
    assert later.report.accuracy is not None
    assert later.report.accuracy <= 0.2
    sooner = ascent(stop="accuracy", stop_distance=None, learning_rate=0.002, epochs=50)
    assert sooner.unlearn(cloud_task()).report.steps < later.report.steps


def test_a_search_ends_where_the_chosen_tau_given_by_hand_ends() -> None:
    searched = ascent(stop_distance=None, learning_rate=0.05, epochs=20).unlearn(cloud_task())
    chosen = searched.report.stop_distance
    assert chosen in tau.GRID
    given = ascent(stop_distance=chosen, learning_rate=0.05, epochs=20).unlearn(cloud_task())
    assert states.digest(given.state) == states.digest(searched.state)
    assert given.report.steps == searched.report.steps
    assert searched.report.gradient_samples >= given.report.gradient_samples
    distances = [candidate.stop_distance for candidate in searched.report.searched]
    assert distances == sorted(distances)


def test_the_same_task_gives_the_same_digest() -> None:
    first, second = (ascent(learning_rate=0.05).unlearn(cloud_task(3)) for _ in range(2))
    assert states.digest(first.state) == states.digest(second.state)


@pytest.mark.parametrize("seed", range(3))
def test_the_state_never_leaves_the_ball(seed: int) -> None:
    task = cloud_task(seed)
    result = ascent(radius=0.3, learning_rate=0.5, epochs=4, stop_distance=99.0).unlearn(task)
    assert states.distance(result.state, task.reference) <= 0.3 * (1 + 1e-5)
    assert result.report.projections > 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("radius", 0.0),
        ("stop_distance", -1.0),
        ("learning_rate", 0.0),
        ("epochs", 0),
        ("batch_size", -5),
        ("clip", 0.0),
        ("momentum", 1.0),
        ("stop_accuracy", 1.5),
        ("stop", "never"),
    ],
)
def test_impossible_settings_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be"):
        ascent(**{key: value})


@pytest.mark.parametrize(
    ("stop", "key"),
    [
        ("distance", "stop_accuracy"),
        ("loss", "stop_accuracy"),
        ("accuracy", "stop_distance"),
        ("loss", "stop_distance"),
    ],
)
def test_a_setting_of_another_stop_rule_is_refused_by_name(stop: str, key: str) -> None:
    settings: dict[str, Any] = {"stop": stop, key: 0.5}
    told = rf"^{key} is 0\.5, but only stop = .* takes it \(stop is '{stop}'\)"
    with pytest.raises(ConfigError, match=told):
        ProjectedAscent(**settings)


def test_an_ascent_that_leaves_the_finite_numbers_says_so(two_class_task: LocalTask) -> None:
    def explode(outputs: Tensor, _: Tensor) -> Tensor:
        return outputs.sum() * float("inf")

    task = dataclasses.replace(two_class_task, loss=explode)
    with pytest.raises(StateError, match="gave values that are not finite at step 1"):
        ascent().unlearn(task)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (torch.ones(1, 1), "expected a pair"),
        ((torch.ones(1, 1),), "expected a pair"),
        ((torch.full((1, 1), float("nan")), torch.tensor([0])), "not finite"),
        ((torch.ones(1, 1), torch.tensor([7])), "labels run from 7 to 7, but the model has 2"),
    ],
    ids=["no-labels", "single", "nan", "label-out-of-range"],
)
def test_batches_that_do_not_fit_are_refused(batch: object, words: str) -> None:
    task = task_of(linear(), [batch], reference={"weight": torch.zeros(2, 1)})  # type: ignore[list-item]
    with pytest.raises(DataError, match=words):
        ascent().unlearn(task)


def test_a_reference_with_nan_is_refused() -> None:
    batch = (torch.ones(1, 1), torch.tensor([0]))
    task = task_of(linear(), [batch], reference={"weight": torch.full((2, 1), float("nan"))})
    with pytest.raises(StateError, match="reference: 'weight' holds values that are not finite"):
        ascent().unlearn(task)


def test_no_batches_are_refused() -> None:
    task = task_of(linear(), [], reference={"weight": torch.zeros(2, 1)})
    with pytest.raises(StateError, match="batches are empty"):
        ascent().unlearn(task)
