from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from harness import servers
from secede import state as states
from secede.errors import ConfigError, StateError
from secede.federation.engine import Batch, ClientSide, LocalTraining, Loss
from secede.unlearning.methods import rapid_retrain
from secede.unlearning.methods.rapid_retrain import RapidRetrain, fisher_diagonal
from secede.unlearning.registry import create


def linear() -> nn.Module:
    return nn.Linear(1, 2, bias=False)


def side(
    batches: Sequence[Batch],
    *,
    loss: Loss = nn.functional.cross_entropy,
    epochs: int = 1,
    make: Callable[[], nn.Module] = linear,
) -> ClientSide:
    """A client whose state is all zeros."""
    zeros = {name: torch.zeros_like(value) for name, value in states.of(make()).items()}
    return ClientSide(
        global_state=zeros,
        own=None,
        samples=sum(len(labels) for _, labels in batches),
        training=LocalTraining(epochs=epochs),
        fresh_model=lambda _: make(),
        batches=lambda _size, _number: batches,
        loss=loss,
    )


TWO = (torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))


def test_one_step_matches_the_hand_sum() -> None:
    # Softmax is (1/2, 1/2), so sample x has the gradient (-x/2, x/2): its mean is (-1, 1), the
    # mean of its square (1 + 9) / 8 = 1.25. The step is 0.5 * 1 / (1.25 + 0.75) = 0.25.
    reply = RapidRetrain(learning_rate=0.5, damping=0.75).train(side([TWO]), 1)
    torch.testing.assert_close(reply.state["weight"], torch.tensor([[0.25], [-0.25]]))
    assert (reply.gradient_samples, reply.samples) == (4, 2)


def test_a_part_of_the_batch_gives_the_fisher_and_all_of_it_the_gradient() -> None:
    # The Fisher is the first sample's 1/4: 0.5 * 1 / (0.25 + 0.75) = 0.5.
    how = RapidRetrain(learning_rate=0.5, damping=0.75, fisher_samples=1)
    reply = how.train(side([TWO]), 1)
    torch.testing.assert_close(reply.state["weight"], torch.tensor([[0.5], [-0.5]]))
    assert reply.gradient_samples == 3


def test_momenta_without_bias_take_equal_steps_under_an_equal_gradient() -> None:
    # A loss that is linear in the weights has the gradient (2, 0) and the Fisher (5, 0) always.
    def first(outputs: Tensor, _: Tensor) -> Tensor:
        return outputs[:, 0].mean()

    how = RapidRetrain(learning_rate=0.1, damping=3.0)
    reply = how.train(side([TWO, TWO], loss=first, epochs=2), 1)
    torch.testing.assert_close(reply.state["weight"], torch.tensor([[-4 * 0.1 * 2 / 8], [0.0]]))


def test_momenta_weigh_the_past_as_the_paper_has_them() -> None:
    # Gradients 1 and 3 in turn, Fisher 1 and 9. After two steps of momentum 1/2 and 1/2:
    # m = (1/4 + 3/2) / (3/4) = 7/3; v = sqrt((1/4 + 81/2) / (3/4)) = sqrt(163/3).
    def first(outputs: Tensor, _: Tensor) -> Tensor:
        return outputs[:, 0].mean()

    turns = [(torch.tensor([[x]]), torch.tensor([0])) for x in (1.0, 3.0)]
    how = RapidRetrain(learning_rate=1, damping=1, momentum=0.5, fisher_momentum=0.5)
    found = how.train(side(turns, loss=first), 1).state["weight"][0].item()
    expected = -1 / (1 + 1) - (7 / 3) / ((163 / 3) ** 0.5 + 1)
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_fisher_is_that_of_single_samples_taken_one_by_one() -> None:
    torch.manual_seed(0)
    model, batch = servers.network(), servers.blobs(12, seed=1)
    found = fisher_diagonal(model, (batch.x, batch.y), nn.functional.cross_entropy)
    sums = [torch.zeros_like(value) for value in model.parameters()]
    for x, y in zip(batch.x, batch.y, strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        for total, value in zip(
            sums, torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            total += value**2
    for one, other in zip(found, sums, strict=True):
        torch.testing.assert_close(one, other / 12)


def test_chunks_of_any_size_give_the_same_fisher(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, batch = servers.network(), servers.blobs(7, seed=1)
    whole = fisher_diagonal(model, (batch.x, batch.y), nn.functional.cross_entropy)
    monkeypatch.setattr("secede.unlearning.methods.rapid_retrain._CHUNK", 1)
    single = fisher_diagonal(model, (batch.x, batch.y), nn.functional.cross_entropy)
    torch.testing.assert_close(whole, single)


def batch_normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64, 3),
    )


def convolved() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(4, 5, (3, 2), padding="valid", dilation=(1, 2), bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(20, 3),
    )


def along_a_row() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2), nn.Flatten(), nn.Linear(16, 3)
    )


@pytest.mark.parametrize(("make", "tensors"), [(convolved, 5), (along_a_row, 6)])
def test_a_stack_of_layers_has_the_fisher_of_its_single_samples(
    make: Callable[[], nn.Module], tensors: int
) -> None:
    torch.manual_seed(0)
    model, x, y = make(), torch.randn(9, 1, 8, 8), torch.arange(9) % 3
    assert rapid_retrain._is_plain(model)
    batch = (x, y)
    fast = rapid_retrain._by_layer(model.eval(), batch, nn.functional.cross_entropy)
    slow = rapid_retrain._by_sample(model.eval(), batch, nn.functional.cross_entropy)
    assert len(fast) == tensors
    torch.testing.assert_close(fast, slow)


def used_twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def with_a_frozen_layer() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "make",
    [
        used_twice,
        with_a_frozen_layer,
        batch_normed,
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(36, 3)),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding="same"), nn.Flatten()),
        lambda: nn.Linear(4, 3),
    ],
)
def test_other_networks_go_sample_by_sample(make: Callable[[], nn.Module]) -> None:
    assert not rapid_retrain._is_plain(make())


def test_a_frozen_layer_is_left_out_of_the_fisher() -> None:
    found = fisher_diagonal(
        with_a_frozen_layer(), (torch.randn(5, 4), torch.arange(5) % 3), nn.functional.cross_entropy
    )
    assert [value.shape for value in found] == [(3, 4), (3,)]


@pytest.mark.parametrize("make", [servers.network, batch_normed])
def test_it_learns_anew_and_the_same_seed_gives_the_same_digest(
    make: Callable[[], nn.Module],
) -> None:
    at = servers.server(rounds=1, make_model=make)
    start, state = servers.erase(RapidRetrain(), at, rounds=2)
    assert states.digest(start.state) == states.digest(at.fresh_state())
    states.check_finite(state)
    again = servers.server(rounds=1, make_model=make)
    assert states.digest(servers.erase(RapidRetrain(), again, rounds=2)[1]) == states.digest(state)


def test_rounds_draw_other_batches_and_lower_the_loss() -> None:
    at = servers.server(rounds=1)
    _, state = servers.erase(RapidRetrain(learning_rate=0.01), at, rounds=4)
    test, losses = servers.blobs(60, seed=9), []
    for one in (at.fresh_state(), state):
        model = at.fresh_model()
        states.load_into(model, one)
        losses.append(nn.functional.cross_entropy(model(test.x), test.y).item())
    assert losses[1] < 0.7 * losses[0]
    how = RapidRetrain()
    first, second = (how.recover(at, state, {}, number) for number in (1, 2))
    assert states.digest(first.state) != states.digest(second.state)


def test_only_retained_clients_work_and_all_they_do_is_counted() -> None:
    at = servers.server(rounds=1, sizes=(24, 30, 18))
    after = RapidRetrain(fisher_samples=2).recover(at, at.fresh_state(), {}, 1)
    # Batches of eight: 30 samples make four, 18 make three; two more gradients for each.
    assert after.cost.gradient_samples == 30 + 18 + 2 * (4 + 3)
    assert after.cost.upload_bytes == 2 * states.size_bytes(at.global_state)
    assert (after.cost.rounds, after.memory) == (1, {})


def test_frozen_parameters_stay() -> None:
    def frozen() -> nn.Module:
        model = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 2))
        model[0].requires_grad_(False)
        return model

    client = side([TWO], make=frozen)
    reply = RapidRetrain().train(client, 1)
    assert torch.equal(reply.state["0.weight"], client.global_state["0.weight"])
    assert not torch.equal(reply.state["1.bias"], client.global_state["1.bias"])


def test_it_is_listed_and_needs_nobody_but_the_retained() -> None:
    entry, method = create("rapid-retrain", {"damping": 0.01})
    assert method == RapidRetrain(damping=0.01)
    assert entry.needs.words() == ()


def test_a_network_whose_single_gradients_cannot_be_taken_is_named() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear()

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.inner(x if x.sum().item() > 0 else -x)
            return outputs

    with pytest.raises(ConfigError, match="per-sample gradients, which torch"):
        RapidRetrain().train(side([TWO], make=Branching), 1)


def test_what_leaves_the_finite_numbers_is_said() -> None:
    at = servers.server(rounds=1)
    with pytest.raises(StateError, match="not finite"):
        servers.erase(RapidRetrain(learning_rate=1e30), at, rounds=2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", 0.0),
        ("damping", float("inf")),
        ("momentum", 1.0),
        ("fisher_momentum", -0.1),
        ("fisher_samples", 0),
    ],
)
def test_impossible_settings_are_refused_by_name(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be"):
        RapidRetrain(**{key: value})  # type: ignore[arg-type]
