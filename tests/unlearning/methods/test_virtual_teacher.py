from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from harness import servers
from secede import state as states
from secede.errors import ConfigError, StateError
from secede.unlearning.method import LocalStepMethod, LocalTask
from secede.unlearning.methods.virtual_teacher import VirtualTeacher

# One sample x = 1, so that the weights are the logits: log 4, log 2 and 0, the label the first.
LOGITS = torch.tensor([[math.log(4)], [math.log(2)], [0.0]])


def task(**changes: Any) -> LocalTask:
    settings: dict[str, Any] = {
        "global_state": {"weight": LOGITS},
        "reference": {"weight": LOGITS.flip(0)},
        "own_state": {"weight": LOGITS},
        "model": nn.Linear(1, 3, bias=False),
        "fresh_model": lambda _: nn.Linear(1, 3, bias=False),
        "batches": lambda _size, _number: [(torch.ones(1, 1), torch.tensor([0]))],
        "loss": nn.functional.cross_entropy,
    }
    return LocalTask(**{**settings, **changes})


def moved(**changes: Any) -> list[float]:
    """Return by how much one step at learning rate 1 moves the three logits."""
    result = VirtualTeacher(learning_rate=1.0, momentum=0.0, **changes).unlearn(task())
    away: list[float] = (result.state["weight"] - LOGITS).flatten().tolist()
    return away


def test_one_step_to_the_minimum_matches_the_hand_sum() -> None:
    # The student says (4, 2, 1)/7. The teacher's first logit becomes the least, 0: (1, 2, 1)/4.
    # Descent adds teacher minus student: (7 - 16, 14 - 8, 7 - 4)/28 = (-9, 6, 3)/28.
    assert moved() == pytest.approx([-9 / 28, 6 / 28, 3 / 28], abs=1e-6)


def test_a_step_goes_along_the_mean_of_a_batch() -> None:
    # Twice the same sample: the same step.
    twice = task(batches=lambda _size, _number: [(torch.ones(2, 1), torch.tensor([0, 0]))])
    found = VirtualTeacher(learning_rate=1.0, momentum=0.0).unlearn(twice).state["weight"] - LOGITS
    assert found.flatten().tolist() == pytest.approx([-9 / 28, 6 / 28, 3 / 28], abs=1e-6)


def test_one_step_with_the_label_removed_matches_the_hand_sum() -> None:
    # The teacher says (0, 2, 1)/3: minus (4, 2, 1)/7 that is (-12, 14 - 6, 7 - 3)/21.
    assert moved(label="removed") == pytest.approx([-12 / 21, 8 / 21, 4 / 21], abs=1e-6)


def test_a_temperature_of_two_matches_the_hand_sum() -> None:
    # Logits halved: the student says (2, sqrt 2, 1)/(3 + sqrt 2), the teacher, with the first at
    # 0, (1, sqrt 2, 1)/(2 + sqrt 2); the slope of the student's logits is half the difference.
    root = math.sqrt(2)
    first = (1 / (2 + root) - 2 / (3 + root)) / 2
    assert moved(temperature=2.0)[0] == pytest.approx(first, abs=1e-6)


def test_one_step_of_adam_matches_the_hand_sum() -> None:
    # Adam's first step is its rate along the slope's sign, whatever its size: of (-9, 6, 3)/28.
    result = VirtualTeacher(optimiser="adam", learning_rate=0.01).unlearn(task())
    away = (result.state["weight"] - LOGITS).flatten().tolist()
    assert away == pytest.approx([-0.01, 0.01, 0.01], abs=1e-6)


def test_a_second_epoch_of_adam_matches_the_hand_sum() -> None:
    # The first step moves the logits to (log 4, log 2, 0) + (-1, 1, 1)/2; targets are (1, 2, 1)/4.
    # Its slope g and the next one h give the means (0.09 g + 0.1 h)/0.19 and, of squares,
    # (0.000999 g² + 0.001 h²)/0.001999.
    target = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64) / 4
    logits = LOGITS.flatten().double()
    g = logits.softmax(0) - target
    moved = logits - 0.5 * g.sign()
    h = moved.softmax(0) - target
    mean = (0.09 * g + 0.1 * h) / 0.19
    square = (0.000999 * g**2 + 0.001 * h**2) / 0.001999
    expected = moved - 0.5 * mean / square.sqrt()
    result = VirtualTeacher(optimiser="adam", learning_rate=0.5, epochs=2).unlearn(task())
    found = result.state["weight"].flatten().tolist()
    assert found == pytest.approx(expected.tolist(), abs=1e-4)
    assert result.report.steps == 2


def test_adam_has_the_published_rate_and_batches_unless_told_otherwise() -> None:
    sizes = list[int]()

    def batches(size: int, number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        sizes.append(size)
        return [(torch.ones(1, 1), torch.tensor([0]))]

    result = VirtualTeacher(optimiser="adam").unlearn(task(batches=batches))
    away = (result.state["weight"] - LOGITS).flatten().tolist()
    assert away == pytest.approx([-1e-4, 1e-4, 1e-4], abs=1e-6)
    assert set(sizes) == {32}
    VirtualTeacher(optimiser="adam", batch_size=8).unlearn(task(batches=batches))
    assert set(sizes) == {32, 8}


def test_the_same_seed_gives_the_same_digest_with_adam() -> None:
    method = LocalStepMethod(VirtualTeacher(optimiser="adam", epochs=2))
    ends = [servers.erase(method, servers.server(rounds=2), rounds=1)[1] for _ in range(2)]
    assert states.digest(ends[0]) == states.digest(ends[1])


def test_the_teacher_is_where_the_student_starts() -> None:
    # At the reference the logits are (0, log 2, log 4): the label has the least one already, so
    # that the teacher says what the student says, and nothing moves.
    result = VirtualTeacher(begin="reference", learning_rate=1.0).unlearn(task())
    torch.testing.assert_close(result.state["weight"], LOGITS.flip(0))
    assert result.report.distance_to_reference == pytest.approx(0, abs=1e-6)


def test_a_removed_label_ends_below_every_other() -> None:
    result = VirtualTeacher(label="removed", learning_rate=1.0, epochs=60).unlearn(task())
    first, second, third = result.state["weight"].softmax(dim=0).flatten().tolist()
    assert first < 0.02
    assert second / third == pytest.approx(2, rel=0.1)  # what the others were among themselves


def test_the_same_seed_gives_the_same_digest_and_post_training_goes_on() -> None:
    method = LocalStepMethod(VirtualTeacher(batch_size=8))
    first, after = servers.erase(method, servers.server(rounds=2), rounds=2)
    second, _ = servers.erase(method, servers.server(rounds=2), rounds=0)
    assert states.digest(first.state) == states.digest(second.state)
    states.check_finite(after)
    assert first.cost.gradient_samples == 24


def test_it_makes_the_leavers_samples_harder() -> None:
    at = servers.server(rounds=6)
    before, _ = at.engine.ask(
        0,
        lambda side: VirtualTeacher(learning_rate=1e-9).unlearn(LocalTask.of(side)),
        global_state=at.global_state,
    )
    after, _ = at.engine.ask(
        0,
        lambda side: VirtualTeacher(batch_size=8, epochs=3).unlearn(LocalTask.of(side)),
        global_state=at.global_state,
    )
    assert before.report.loss is not None
    assert after.report.loss is not None
    assert after.report.loss > before.report.loss


def test_without_a_global_model_it_does_not_start() -> None:
    with pytest.raises(StateError, match="names differ"):
        VirtualTeacher().unlearn(task(global_state={}))


def test_it_needs_classes() -> None:
    batch = (torch.ones(1, 1), torch.ones(1, 3))
    with pytest.raises(ConfigError, match="needs at least two classes"):
        VirtualTeacher().unlearn(
            task(batches=lambda _size, _number: [batch], loss=nn.functional.mse_loss)
        )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"begin": "own"}, "begin must be 'global' or 'reference', got 'own'"),
        ({"label": "zero"}, "label must be 'minimum' or 'removed', got 'zero'"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"optimiser": "adagrad"}, "optimiser must be 'sgd' or 'adam', got 'adagrad'"),
        ({"optimiser": "adam", "momentum": 0.5}, "momentum is 0.5, but Adam takes none"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        VirtualTeacher(**settings)
