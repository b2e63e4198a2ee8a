from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from harness import servers
from harness.recorded import keep, linear_server, weights
from secede import state as states
from secede.errors import ConfigError, RecordError, StateError
from secede.unlearning import registry
from secede.unlearning.methods.federaser import FedEraser
from secede.unlearning.update_history import UpdateHistory


def test_one_calibration_matches_the_hand_sum(tmp_path: Path) -> None:
    # Round 1 sent nothing, so the replay stands at zero: softmax is (1/2, 1/2). Client 1 (class 0)
    # steps to (1/2, -1/2), client 2 to the opposite: directions ±(1, -1) / √2. What they sent once
    # was 5 = |(3, 4)| and 1 long, and they weigh 1 : 3, so the mean is (5 · 1 - 1 · 3) / 4 = 1/2.
    server, zero = linear_server(tmp_path), weights(0, 0)
    keep(server, 1, zero, (0, weights(9, 9), 2), (1, zero, 1), (2, zero, 3))
    sent = ((0, weights(9, 9), 2), (1, weights(3, 4), 1), (2, weights(0, 1), 3))
    keep(server, 2, weights(5, 5), *sent)
    start = FedEraser(interval=1, calibration_ratio=1).start(server)
    expected = 0.5 / math.sqrt(2)
    torch.testing.assert_close(start.state["weight"], torch.tensor([[expected], [-expected]]))
    assert start.cost.rounds == 1
    assert start.cost.gradient_samples == 4


def test_round_one_is_replayed_without_the_leaver_and_without_asking_anybody(
    tmp_path: Path,
) -> None:
    # From 1: retained clients sent 4 and 8 with weights 1 : 3, their mean is 7.
    server = linear_server(tmp_path)
    sent = ((0, weights(90, 9), 2), (1, weights(4, 0), 1), (2, weights(8, 0), 3))
    keep(server, 1, weights(1, 1), *sent)
    start = FedEraser(interval=1).start(server)
    assert start.state["weight"].flatten().tolist() == [8.0, 1.0]
    assert (start.cost.rounds, start.cost.upload_bytes, start.cost.gradient_samples) == (0, 0, 0)


def test_each_tensor_steps_as_far_as_it_once_did(tmp_path: Path) -> None:
    server = servers.server(sizes=(24, 30), rounds=4, history=tmp_path)
    assert server.history is not None
    first, third = server.history.round(1), server.history.round(3)
    begun = states.shifted(first.before, first.updates[1])
    start = FedEraser().start(server)
    for name, step in states.difference(start.state, begun).items():
        assert step.norm().item() == pytest.approx(third.updates[1][name].norm().item(), rel=1e-3)


def test_a_tensor_that_training_does_not_move_stays_where_it_is() -> None:
    still, sent = weights(0, 0), weights(3, 4)
    assert states.with_lengths(still, sent)["weight"].flatten().tolist() == [0.0, 0.0]
    assert states.with_lengths(sent, still)["weight"].flatten().tolist() == [0.0, 0.0]
    # Along (6, 8), which is 10 long, as far as (3, 4), which is 5; a counter is not a length.
    counted = {**weights(6, 8), "steps": torch.tensor(7)}
    turned = states.with_lengths(counted, {**sent, "steps": torch.tensor(1)})
    assert turned["weight"].flatten().tolist() == [3.0, 4.0]
    assert turned["steps"].item() == 7


def test_what_the_leaver_sent_changes_nothing(tmp_path: Path) -> None:
    server = servers.server(history=tmp_path)
    honest = FedEraser().start(server).state
    for path in tmp_path.glob("updates-*.safetensors"):
        tensors, metadata = states.load(path)
        other = {n: v + 1 if n.startswith("0/") else v for n, v in tensors.items()}
        states.save(other, path, metadata)
    assert states.digest(FedEraser().start(server).state) == states.digest(honest)


def test_half_an_epoch_is_half_the_batches_and_every_exchange_is_counted(tmp_path: Path) -> None:
    # Kept are rounds 1, 3 and 5, so there are two calibrations. Batches of 8: 30 samples make four,
    # half of them two; 18 samples make three, half of them rounded up two. So 2 · (16 + 16).
    server = servers.server(sizes=(24, 30, 18), rounds=6, history=tmp_path)
    start = FedEraser().start(server)
    assert start.cost.rounds == 2
    assert start.cost.gradient_samples == 64
    assert start.cost.upload_bytes == 2 * 2 * states.size_bytes(server.global_state)
    assert start.report is not None
    assert start.report["replayed_rounds"] == 3
    sparse = FedEraser(interval=4).start(server)
    assert sparse.cost.rounds == 1


def test_a_client_that_missed_a_round_is_not_asked_for_it(tmp_path: Path) -> None:
    server, zero = linear_server(tmp_path), weights(0, 0)
    keep(server, 1, zero, (0, weights(9, 9), 2))  # nobody but the leaver: nothing to replay
    keep(server, 2, weights(9, 9), (0, weights(9, 9), 2), (1, weights(3, 4), 1))
    start = FedEraser(interval=1, calibration_ratio=1).start(server)
    expected = 5 / math.sqrt(2)
    torch.testing.assert_close(start.state["weight"], torch.tensor([[expected], [-expected]]))
    assert start.cost.gradient_samples == 1


def test_the_same_seed_gives_the_same_digest(tmp_path: Path) -> None:
    first, second = (
        servers.erase(FedEraser(), servers.server(seed=3, history=tmp_path / name), rounds=1)[1]
        for name in ("first", "second")
    )
    assert states.digest(first) == states.digest(second)


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(),
        nn.Linear(64, 3),
    )  # fmt: skip


@pytest.mark.parametrize("make_model", [servers.network, normalised])
def test_it_replays_a_federation_and_post_training_goes_on(
    tmp_path: Path, make_model: type[nn.Module]
) -> None:
    server = servers.server(history=tmp_path, make_model=make_model)
    start, state = servers.erase(FedEraser(), server, rounds=2)
    for found in (start.state, state):
        states.check_schema(found, server.global_state)
        states.check_finite(found)
    if make_model is normalised:
        assert bool((start.state["1.running_var"] > 0).all())
    assert start.memory == {}


def test_what_it_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the server kept no history"):
        FedEraser().start(servers.server(rounds=1))
    server = linear_server(tmp_path, interval=2)
    with pytest.raises(
        ConfigError,
        match=r"interval\) is 3, expected a multiple of situation.history_interval, which is 2",
    ):
        FedEraser(interval=3).start(server)
    with pytest.raises(
        ConfigError,
        match=r"interval\) is 3, expected a multiple of situation.history_interval, which is 2",
    ):
        FedEraser(interval=3).check_history(UpdateHistory(tmp_path))
    FedEraser(interval=4).check_history(UpdateHistory(tmp_path))
    with pytest.raises(RecordError, match="holds no round to replay"):
        FedEraser().start(server)


def test_a_replay_that_leaves_the_finite_numbers_says_so(tmp_path: Path) -> None:
    server, zero = linear_server(tmp_path), weights(0, 0)
    keep(server, 1, zero, (1, zero, 1))
    keep(server, 2, zero, (1, weights(math.inf, 0), 1))
    with pytest.raises(StateError, match="after the replay of round 2"):
        FedEraser(interval=1).start(server)


@pytest.mark.parametrize(
    ("key", "value"), [("interval", 0), ("calibration_ratio", 0.0), ("calibration_ratio", 1.5)]
)
def test_impossible_settings_are_refused_by_name(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be"):
        FedEraser(**{key: value})  # type: ignore[arg-type]


def test_the_table_says_what_it_needs() -> None:
    entry, method = registry.create("federaser", {"interval": 4})
    assert method == FedEraser(interval=4)
    assert entry.needs.words() == ("stored history", "single updates")
