from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import LocalTraining, OwnState
from secede.flower.client.limits import ClientLimits
from secede.seeding import generator
from secede.unlearning.client_tasks import TaskMessage, from_message
from secede.unlearning.method import Candidate, LocalReport, LocalResult, Reply

LIMITS, TRAINING = ClientLimits(rounding=5), LocalTraining(learning_rate=0.1)


@pytest.mark.parametrize(
    ("settings", "share", "words"),
    [
        ({"batch_size": 1025}, 0.2, "batch_size is 1025, this client takes at most 1024"),
        ({"clip": 1e12}, 0.2, "clip is 1e+12, this client takes at most 10"),
        ({"learning_rate": 2.0}, 0.2, "learning_rate is 2, this client takes at most 1"),
        ({"epochs": 101}, 0.2, "epochs is 101, this client takes at most 100"),
        ({}, 0.95, "a share of 0.95 of the last mean, this client takes at most 0.9"),
    ],
)
def test_settings_beyond_the_clients_own_bounds_are_refused(
    settings: dict[str, Any], share: float, words: str
) -> None:
    for method in ("projected-ascent", "second-choice", "virtual-teacher"):
        step: Any = from_message(TaskMessage("local-step", method, settings))
        with pytest.raises(ConfigError, match=re.escape(words)):
            LIMITS.check_step(step, TRAINING, share)
        LIMITS.check_step(
            from_message(TaskMessage("local-step", method, {})),  # type: ignore[arg-type]
            TRAINING,
            0.2,
        )


def test_a_model_is_known_by_how_far_it_is_from_an_own_update() -> None:
    update = {"w": torch.ones(4), "b": torch.zeros(2), "n": torch.tensor(7)}
    moved = {"w": 0.2, "b": 0.1}
    near = {**update, "w": torch.ones(4) * 1.49, "n": torch.tensor(9)}  # 5 times 0.2 is 1
    LIMITS.check_known(near, [(update, moved)], step=True)
    for model in ({**update, "w": torch.ones(4) * 1.51}, {**update, "b": torch.full((2,), 0.36)}):
        with pytest.raises(ConfigError, match="this client knows the model from no round"):
            LIMITS.check_known(model, [(update, moved)], step=True)
        LIMITS.check_known(model, [(update, moved)], step=False)  # counts tell less
        LIMITS.check_known(model, [(update, moved), (model, {})], step=True)
    broken = {**update, "b": torch.full((2,), float("nan"))}
    with pytest.raises(ConfigError, match="'b' is too far"):
        LIMITS.check_known(broken, [(update, {})], step=True)
    with pytest.raises(ConfigError, match="it kept no update of this federation"):
        LIMITS.check_known(update, [], step=False)


def returned(
    own: torch.Tensor, change: torch.Tensor, *, weight: float, **report: Any
) -> tuple[LocalResult, dict[str, torch.Tensor]]:
    """Return what leaves a client that hides its updates, and what would without noise."""
    model = {"w": torch.zeros_like(own)}
    start = states.reference(model, {"w": own}, weight=weight)
    clear = {"w": start["w"] + change}
    numbers = {"steps": 9, "ended_by": "epochs", "gradient_samples": 9, "accuracy": 0.5, "loss": 1}
    made = LocalReport(**{**numbers, "distance_to_own": 1, "distance_to_reference": 1, **report})
    state = OwnState({"w": own}, weight)
    return LIMITS.hidden_result(LocalResult(clear, made), model, state, "s"), clear


def test_a_short_step_does_not_return_the_own_update_for_a_false_share() -> None:
    draw = generator(0)
    own, change = torch.randn(50, 400, generator=draw), torch.randn(50, 400, generator=draw)
    for share in (0.5, 0.9):
        length = 0.02 * share / (1 - share)  # of the way to the reference
        found, _ = returned(own, length * change, weight=share)
        told = -(1 - share) / share * found.state["w"]
        assert 0.5 < float((told - own).norm() / own.norm()) < 0.9


def test_units_that_see_the_same_sample_cannot_be_averaged_to_it() -> None:
    sample = torch.rand(1, 400, generator=generator(0))
    change = sample.expand(200, 400)
    found, clear = returned(torch.zeros(200, 400), change, weight=1e-6)
    mean = (found.state["w"] - clear["w"]).mean(dim=0) + sample
    assert float((mean - sample).norm() / sample.norm()) > 0.4
    few = torch.zeros(200, 400)
    few[7] = sample
    found, clear = returned(torch.zeros(200, 400), few, weight=1e-6)
    assert float((found.state["w"] - clear["w"])[7].norm() / sample.norm()) > 0.4


def test_a_hidden_steps_report_has_two_digits() -> None:
    own = torch.ones(3, 3)
    searched = (Candidate(1.0, 4, 0.98765),)
    numbers = {"accuracy": 0.12345, "loss": 2.3456, "distance_to_own": 1.2345}
    found, _ = returned(own, own, weight=0.1, searched=searched, **numbers)
    report = found.report
    assert (report.accuracy, report.loss, report.distance_to_own) == (0.12, 2.3, 1.2)
    assert (report.searched[0].accuracy, report.own_share) == (0.99, None)


def counted(
    right: list[int], samples: list[int], secret: str = "s", model: str = "m"
) -> tuple[list[int], list[int]]:
    state = {"right": torch.tensor(right), "samples": torch.tensor(samples)}
    reply = Reply(state=state, gradient_samples=0, samples=sum(samples))
    reply = LIMITS.blurred(reply, secret, model)
    assert reply.samples == int(reply.state["samples"].sum())
    return reply.state["right"].tolist(), reply.state["samples"].tolist()


def test_counts_are_multiples_and_right_on_average() -> None:
    found = [counted([23, 0, 48], [40, 40, 48], str(n))[0] for n in range(500)]
    assert {first for first, *_ in found} == {20, 25}
    assert {tuple(rest) for _, *rest in found} == {(0, 48)}  # none and all stay what they are
    assert sum(first for first, *_ in found) / 500 == pytest.approx(23, abs=0.4)
    assert found[0] == counted([23, 0, 48], [40, 40, 48], "0")[0]  # asking again tells no more


def test_hardly_another_model_is_rounded_by_another_coin() -> None:
    # One coin for all models would show in each question whether a single sample is right.
    found = [counted([23], [40], "s", str(n))[0][0] for n in range(500)]
    assert sum(found) / 500 == pytest.approx(23, abs=0.4)


def test_small_classes_are_counted_together_or_not_at_all() -> None:
    assert counted([4, 20, 5, 1], [6, 20, 9, 0]) in [
        ([right, 20, 0, 0], [15, 20, 0, 0]) for right in (5, 10)
    ]
    assert counted([4, 20], [6, 20]) == ([0, 20], [0, 20])
    with pytest.raises(ConfigError, match="fewer than 10 samples here: they are not counted"):
        counted([4, 0], [6, 0])


def changes(secret: str, **counts: list[int]) -> dict[str, list[int]]:
    state = {name: torch.tensor(values) for name, values in counts.items()}
    reply = Reply(state=state, gradient_samples=0, samples=sum(counts["samples"]))
    told = LIMITS.blurred(reply, secret, "after", "before").state
    return {name: v.tolist() for name, v in told.items()}


def test_changes_are_blurred_like_counts_and_still_add_up() -> None:
    given = {"right": [23, 40, 4], "samples": [40, 40, 6], "lost": [7, 0, 1], "gained": [12, 3, 1]}
    differences = []
    for secret in map(str, range(500)):
        told = changes(secret, **given)
        assert [values[2] for values in told.values()] == [0, 0, 0, 0]  # a class of 6
        for r, n, b, c in zip(*(told[k] for k in given), strict=True):
            assert 0 <= c <= r <= n
            assert 0 <= b <= n - r
        # The same numbers as two counts alone, so that nothing more is told of them.
        earlier = counted([18, 37, 4], [40, 40, 6], secret, "before")[0]
        later = counted([23, 40, 4], [40, 40, 6], secret, "after")[0]
        assert told["right"] == later
        names = ("right", "lost", "gained")
        found = [a + b - c for a, b, c in zip(*(told[k] for k in names), strict=True)]
        assert found == earlier
        differences.append(told["gained"][0] - told["lost"][0])
    assert sum(differences) / 500 == pytest.approx(5, abs=0.5)


@pytest.mark.parametrize("samples", [10, 11])
def test_whatever_changes_what_is_told_adds_up(samples: int) -> None:
    # A client whose numbers do not is left out of the gate; here all right ones may be lost.
    limits = ClientLimits()
    for earlier in range(samples + 1):
        for lost in range(earlier + 1):
            for gained in range(samples - earlier + 1):
                values = {"right": earlier - lost + gained, "samples": samples}
                values |= {"lost": lost, "gained": gained}
                state = {name: torch.tensor([value]) for name, value in values.items()}
                reply = Reply(state=state, gradient_samples=0, samples=samples)
                for secret in map(str, range(4)):
                    told = limits.blurred(reply, secret, "after", "before").state
                    c, b, r = (int(told[name]) for name in ("gained", "lost", "right"))
                    assert 0 <= c <= r
                    assert 0 <= b <= samples - r


def told_loss(limits: ClientLimits, samples: int = 100) -> tuple[float, float]:
    state = {"loss": torch.tensor([1.23456]), "accuracy": torch.tensor([0.777])}
    reply = Reply(state=state, gradient_samples=0, samples=samples)
    told = limits.blurred(reply, "s", "m").state
    return float(told["loss"]), float(told["accuracy"])


def test_a_loss_is_told_with_two_digits_where_it_is_told() -> None:
    loss, accuracy = told_loss(ClientLimits(rounding=5, tells_loss=True))
    assert loss == pytest.approx(1.2)
    assert round(accuracy, 4) in (0.75, 0.8)


def test_no_loss_is_told_unasked_nor_of_few_samples() -> None:
    with pytest.raises(ConfigError, match="tells no loss, which can be nearly that of a single"):
        told_loss(ClientLimits())
    with pytest.raises(ConfigError, match="fewer than 10 samples here: no loss is told"):
        told_loss(ClientLimits(tells_loss=True), samples=9)


def test_limits_are_positive(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="questions must be positive, got 0"):
        ClientLimits(questions=0)
