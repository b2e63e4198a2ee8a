from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness import servers
from secede import state as states
from secede.data.samples import Samples
from secede.errors import ConfigError, DataError, StateError
from secede.federation.engine import LocalTraining, Update
from secede.federation.simulator import Simulator
from secede.unlearning import registry
from secede.unlearning.method import Server
from secede.unlearning.methods.distillation import Distillation
from secede.unlearning.update_history import UpdateHistory


def linear_server(
    folder: Path, taught: tuple[float, float], inputs: Tensor | None = None
) -> Server:
    """One input x = 1, so that the weights are the logits; the global model's are (ln 3, 0)."""
    one = Samples(torch.ones(1, 1), torch.tensor([0]))
    engine = Simulator(
        [one, one], lambda: nn.Linear(1, 2, bias=False), training=LocalTraining(), seed=0
    )
    history, before = UpdateHistory(folder), {"weight": torch.zeros(2, 1)}
    sent = {"weight": torch.tensor(taught)[:, None]}
    history.record(1, before, [Update(0, sent, 1), Update(1, before, 3)])
    return Server(
        engine=engine,
        global_state={"weight": torch.tensor([[math.log(3)], [0.0]])},
        leaver=0,
        retained=(1,),
        fresh_state=lambda: engine.initial_state("retraining"),
        fresh_model=lambda: engine.fresh_model("template"),
        history=history,
        unlabelled=torch.ones(1, 1) if inputs is None else inputs,
    )


def test_one_step_matches_the_hand_sum(tmp_path: Path) -> None:
    # The leaver sent (4 ln 3, 0) with a share of 1/4: subtracted, the logits are (0, 0). At T = 1
    # the old model says (3/4, 1/4), the student (1/2, 1/2); the gradient is their difference, and
    # a step of 1 goes to (1/4, -1/4).
    server = linear_server(tmp_path, (4 * math.log(3), 0.0))
    start = Distillation(epochs=1, temperature=1.0, learning_rate=1.0).start(server)
    torch.testing.assert_close(start.state["weight"], torch.tensor([[0.25], [-0.25]]))
    assert (start.cost.rounds, start.cost.upload_bytes, start.cost.download_bytes) == (0, 0, 0)
    assert start.cost.gradient_samples == 1
    assert start.cost.seconds > 0


def test_a_step_goes_along_the_mean_of_a_batch(tmp_path: Path) -> None:
    # Three times the same input: the same step.
    server = linear_server(tmp_path, (4 * math.log(3), 0.0), inputs=torch.ones(3, 1))
    start = Distillation(epochs=1, temperature=1.0, learning_rate=1.0).start(server)
    torch.testing.assert_close(start.state["weight"], torch.tensor([[0.25], [-0.25]]))


def test_temperature_softens_the_labels_and_keeps_the_steps_scale(tmp_path: Path) -> None:
    # At T = 2 the old model says √3 : 1. The gradient by the logits is (1/2 - q) / T, times T².
    server = linear_server(tmp_path, (4 * math.log(3), 0.0))
    start = Distillation(epochs=1, temperature=2.0, learning_rate=1.0).start(server)
    step = 2 * (math.sqrt(3) / (math.sqrt(3) + 1) - 0.5)
    torch.testing.assert_close(start.state["weight"], torch.tensor([[step], [-step]]))


def test_the_gradient_is_clipped_to_its_norm(tmp_path: Path) -> None:
    server = linear_server(tmp_path, (4 * math.log(3), 0.0))
    start = Distillation(epochs=1, temperature=1.0, learning_rate=1.0, clip=0.1).start(server)
    assert start.state["weight"].norm().item() == pytest.approx(0.1, abs=1e-5)


def test_a_leaver_that_taught_nothing_changes_nothing(tmp_path: Path) -> None:
    # The student is its own teacher then: every gradient is zero.
    server = linear_server(tmp_path, (0.0, 0.0))
    start = Distillation(epochs=3).start(server)
    torch.testing.assert_close(start.state["weight"], server.global_state["weight"])


@pytest.fixture
def unlabelled() -> Tensor:
    return servers.blobs(33, seed=77).x


def test_distilling_brings_back_what_the_subtraction_took(
    tmp_path: Path, unlabelled: Tensor
) -> None:
    server = servers.server(history=tmp_path, unlabelled=unlabelled)
    model = server.fresh_model()

    @torch.no_grad()
    def agreement(state: states.State) -> float:
        states.load_into(model, state)
        model.eval()
        said = model(unlabelled).softmax(1)
        states.load_into(model, server.global_state)
        return -float((said - model(unlabelled).softmax(1)).abs().sum())

    short = Distillation(epochs=1, learning_rate=1e-6).start(server)
    long = Distillation(epochs=15, batch_size=8, learning_rate=0.1).start(server)
    assert agreement(short.state) < agreement(long.state)
    assert long.cost.gradient_samples == 15 * 33


def test_the_same_seed_gives_the_same_digest_whatever_was_drawn_before(
    tmp_path: Path, unlabelled: Tensor
) -> None:
    digests = []
    for name in ("first", "second"):
        server = servers.server(
            seed=3, history=tmp_path / name, unlabelled=unlabelled, make_model=normalised
        )
        torch.rand(len(name))
        digests.append(states.digest(Distillation(epochs=2, batch_size=8).start(server).state))
    assert digests[0] == digests[1]


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(64, 3),
    )  # fmt: skip


@pytest.mark.parametrize("make_model", [servers.network, normalised])
def test_it_distils_a_federation_and_post_training_goes_on(
    tmp_path: Path, unlabelled: Tensor, make_model: type[nn.Module]
) -> None:
    # 33 inputs in batches of 32: BatchNorm could not take the last one alone.
    server = servers.server(history=tmp_path, unlabelled=unlabelled, make_model=make_model)
    start, state = servers.erase(Distillation(batch_size=32), server, rounds=2)
    for found in (start.state, state):
        states.check_schema(found, server.global_state)
        states.check_finite(found)
    if make_model is normalised:
        assert bool((start.state["1.running_var"] > 0).all())
        passes = start.state["1.num_batches_tracked"] - server.global_state["1.num_batches_tracked"]
        assert passes.item() == 5 * 2


def test_what_it_lacks_is_said(tmp_path: Path, unlabelled: Tensor) -> None:
    with pytest.raises(ConfigError, match="kept no history"):
        Distillation().start(servers.server(rounds=1, unlabelled=unlabelled))
    with pytest.raises(ConfigError, match="needs unlabelled data at the server"):
        Distillation().start(servers.server(rounds=1, history=tmp_path / "without"))
    with pytest.raises(ConfigError, match="needs unlabelled data at the server"):
        Distillation().start(linear_server(tmp_path / "empty", (0.0, 0.0), torch.ones(0, 1)))
    broken = torch.full((1, 1), math.nan)
    with pytest.raises(DataError, match="not finite"):
        Distillation().start(linear_server(tmp_path / "broken", (0.0, 0.0), broken))


def test_a_distillation_that_leaves_the_finite_numbers_says_so(tmp_path: Path) -> None:
    server = linear_server(tmp_path, (math.inf, 0.0))
    with pytest.raises(StateError, match="gave values that are not finite"):
        Distillation().start(server)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", 0),
        ("temperature", 0.0),
        ("learning_rate", -1.0),
        ("batch_size", 0),
        ("clip", 0.0),
        ("momentum", 1.0),
    ],
)
def test_impossible_settings_are_refused_by_name(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be"):
        Distillation(**{key: value})  # type: ignore[arg-type]


def test_the_table_says_what_it_needs() -> None:
    entry, method = registry.create("distillation", {"epochs": 2})
    assert method == Distillation(epochs=2)
    assert entry.needs.words() == ("stored history", "data at the server", "single updates")
