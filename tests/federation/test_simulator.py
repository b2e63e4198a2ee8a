from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from secede import state as states
from secede.data.samples import Samples
from secede.errors import ConfigError, StateError
from secede.federation.engine import ClientSide, Engine, LocalTraining, Update, aggregate
from secede.federation.simulator import Simulator
from secede.state import State


def clients(sizes: tuple[int, ...], seed: int = 0) -> list[Samples]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Samples(
            torch.rand(size, 1, 6, 6, generator=generator),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for size in sizes
    ]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    )


def simulator(
    sizes: tuple[int, ...] = (30, 20, 50),
    *,
    seed: int = 0,
    make_model: Callable[[], nn.Module] = network,
    training: LocalTraining | None = None,
) -> Simulator:
    how = training or LocalTraining(batch_size=16)
    return Simulator(clients(sizes), make_model, training=how, seed=seed)


def train(engine: Simulator, rounds: int, members: tuple[int, ...] = (0, 1, 2)) -> State:
    state: State = engine.initial_state("initial")
    for number in range(1, rounds + 1):
        reply = engine.train_round(state, members, phase="training", number=number)
        state = aggregate(reply.updates)
    return state


def test_a_round_of_one_step_matches_the_hand_sum() -> None:
    # Two clients with one sample each and a scalar weight w = 0 under the loss w * x:
    # gradient x, so client a moves to -0.1 * 1 and client b to -0.1 * 4.
    def scalar() -> nn.Module:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    a = Samples(torch.tensor([[1.0]]), torch.tensor([0]))
    b = Samples(torch.tensor([[4.0], [4.0], [4.0]]), torch.tensor([0, 0, 0]))
    engine = Simulator(
        [a, b],
        scalar,
        training=LocalTraining(learning_rate=0.1, momentum=0.9, batch_size=8),
        seed=0,
        loss=lambda outputs, _: outputs.mean(),
    )
    reply = engine.train_round(engine.initial_state(), (0, 1), phase="training", number=1)
    assert [u.state["weight"].item() for u in reply.updates] == pytest.approx([-0.1, -0.4])
    # Weighted by one and three samples: (-0.1 - 3 * 0.4) / 4.
    assert aggregate(reply.updates)["weight"].item() == pytest.approx(-0.325)


def test_the_same_seed_gives_the_same_digest_and_another_seed_another() -> None:
    first, second, other = (train(simulator(seed=seed), 2) for seed in (1, 1, 2))
    assert states.digest(first) == states.digest(second)
    assert states.digest(first) != states.digest(other)


def test_measuring_between_rounds_changes_nothing() -> None:
    engine = simulator()
    state: State = engine.initial_state("initial")
    for number in (1, 2):
        model = engine.model(state)
        model(torch.rand(4, 1, 6, 6))
        torch.rand(7)  # a metric that draws from the global generator
        reply = engine.train_round(state, (0, 1, 2), phase="training", number=number)
        state = aggregate(reply.updates)
    assert states.digest(state) == states.digest(train(simulator(), 2))


def test_a_round_depends_on_its_name_alone_so_that_runs_can_resume() -> None:
    engine = simulator()
    state = train(engine, 1)
    resumed = simulator()
    for each in (engine, resumed):
        each.train_round(state, (0,), phase="other", number=9)
    a, b = (
        aggregate(each.train_round(state, (0, 1, 2), phase="training", number=2).updates)
        for each in (engine, resumed)
    )
    assert states.digest(a) == states.digest(b) == states.digest(train(simulator(), 2))


def test_no_update_outlives_its_round() -> None:
    engine = simulator()
    seen: list[weakref.ref[Tensor]] = []
    state: State = engine.initial_state("initial")
    for number in range(1, 5):
        reply = engine.train_round(state, (0, 1, 2), phase="training", number=number)
        seen += [
            weakref.ref(tensor) for update in reply.updates for tensor in update.state.values()
        ]
        state = aggregate(reply.updates)
        del reply
    gc.collect()
    alive = [reference for reference in seen if reference() is not None]
    per_round = 3 * len(state)
    assert len(seen) == 4 * per_round
    assert len(alive) == per_round  # each client's own last state and nothing older
    assert sorted(engine.own) == [0, 1, 2]


def test_the_reference_from_the_own_state_is_the_mean_of_the_others() -> None:
    engine = simulator()
    start = engine.initial_state("initial")
    updates = engine.train_round(start, (0, 1, 2), phase="training", number=1).updates
    own = engine.own[2]
    assert own.weight == 0.5
    found = states.reference(aggregate(updates), own.state, weight=own.weight)
    expected = aggregate(updates[:2])
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-5)


def test_costs_are_counted_by_the_engine() -> None:
    engine = simulator(training=LocalTraining(batch_size=16, epochs=2))
    start = engine.initial_state("initial")
    cost = engine.train_round(start, (0, 2), phase="training", number=1).cost
    parameters = 36 * 8 + 8 + 8 * 3 + 3
    assert cost.upload_bytes == cost.download_bytes == 2 * 4 * parameters
    assert cost.gradient_samples == 2 * (30 + 50)
    assert cost.rounds == 1
    assert cost.seconds > 0
    total = cost + cost
    assert (total.rounds, total.gradient_samples) == (2, 320)


@dataclass(frozen=True)
class Echo:
    state: State
    gradient_samples: int


def test_a_task_at_a_client_costs_one_model_down_and_one_up() -> None:
    engine = simulator()
    state = train(engine, 1)

    def task(side: ClientSide) -> Echo:
        batches = list(side.batches(16, 1))
        assert [len(labels) for _, labels in batches] == [16, 4]
        first = [labels for _, labels in side.batches(16, 2)]
        assert any(not torch.equal(a, b[1]) for a, b in zip(first, batches, strict=True))
        assert side.own is not None
        return Echo(side.own.state, 7)

    reply, cost = engine.ask(1, task, global_state=state)
    assert states.digest(reply.state) == states.digest(engine.own[1].state)
    assert cost.upload_bytes == cost.download_bytes == states.size_bytes(state)
    assert (cost.rounds, cost.gradient_samples) == (0, 7)


def test_each_number_has_its_own_draw_and_none_is_the_first() -> None:
    engine = simulator()
    state = train(engine, 1)

    def drawn(**asked: int) -> float:
        reply, _ = engine.ask(
            1, lambda _: Echo({"drawn": torch.rand(1)}, 0), global_state=state, **asked
        )
        return reply.state["drawn"].item()

    assert drawn() == drawn() == drawn(number=0)
    assert drawn(number=2) == drawn(number=2)
    assert len({drawn(), drawn(number=1), drawn(number=2)}) == 3


def test_who_misses_a_round_has_no_share_in_the_last_mean() -> None:
    engine = simulator()
    state = train(engine, 1)
    sent = engine.own[0].state
    reply = engine.train_round(state, (1, 2), phase="training", number=2)
    assert {client: own.weight for client, own in engine.own.items()} == {0: 0, 1: 2 / 7, 2: 5 / 7}
    assert states.digest(engine.own[0].state) == states.digest(sent)
    # So what it takes for the others' mean is their mean.
    after = aggregate(reply.updates)
    own = engine.own[0]
    found = states.reference(after, own.state, weight=own.weight)
    assert states.digest(found) == states.digest(after)


def test_rounds_of_another_phase_take_nobodys_share() -> None:
    # Whoever leaves is asked about the model that it had a share in, however the others go on.
    engine = simulator()
    state = train(engine, 1)
    engine.train_round(state, (1, 2), phase="post-training", number=1)
    assert engine.own[0].weight == 0.3
    engine.train_round(state, (1,), phase="post-training", number=2)
    assert (engine.own[0].weight, engine.own[1].weight, engine.own[2].weight) == (0.3, 1.0, 0.0)


def test_a_round_may_leave_what_clients_remember_as_it_is() -> None:
    engine = simulator()
    state = train(engine, 1)
    before = dict(engine.own)
    engine.remembers = False
    engine.train_round(state, (1, 2), phase="training", number=2)
    assert engine.own == before


def test_it_is_an_engine() -> None:
    engine: Engine = simulator()
    assert callable(engine.train_round)


def test_unknown_and_empty_clients_are_refused() -> None:
    engine = simulator()
    with pytest.raises(ConfigError, match="unknown client 7, expected 0 to 2"):
        engine.train_round(engine.initial_state(), (7,), phase="training", number=1)
    with pytest.raises(ConfigError, match="client 1 has no samples"):
        simulator((5, 0))


def test_a_broken_update_is_named() -> None:
    good = Update(0, {"w": torch.ones(1)}, 5)
    bad = Update(3, {"w": torch.tensor([float("nan")])}, 5)
    with pytest.raises(StateError, match="client 3's update: 'w' holds values that are not finite"):
        aggregate([good, bad])


def test_batchnorm_statistics_average_and_counters_do_not() -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3))

    engine = simulator((32, 32), make_model=normalised)
    start = engine.initial_state("initial")
    updates = engine.train_round(start, (0, 1), phase="training", number=1).updates
    mean = aggregate(updates)
    expected = (updates[0].state["1.running_mean"] + updates[1].state["1.running_mean"]) / 2
    torch.testing.assert_close(mean["1.running_mean"], expected)
    assert mean["1.num_batches_tracked"].item() == 2


class Counting(nn.Module):
    """Keeps a running value that no state holds, and adds it to what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(36, 3)
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.get_buffer("seen").add_(x.mean())
        out: Tensor = self.inner(x.flatten(1)) + self.get_buffer("seen") * torch.tensor([1.0, 0, 0])
        return out


def test_nothing_passes_from_one_client_to_the_next_through_hidden_buffers() -> None:
    one, other = simulator(make_model=Counting), simulator(make_model=Counting)
    start = one.initial_state("initial")
    one.train_round(start, (0,), phase="training", number=1)
    found, expected = (
        engine.train_round(start, (1,), phase="retraining", number=1).updates[0].state
        for engine in (one, other)
    )
    assert states.digest(found) == states.digest(expected)


def test_a_last_batch_of_one_under_batchnorm_is_refused_by_name() -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3))

    engine = simulator((17,), make_model=normalised)
    with pytest.raises(ConfigError, match=r"training\.batch_size"):
        engine.train_round(engine.initial_state(), (0,), phase="training", number=1)


def test_clients_may_be_tensors_or_map_style_data_sets() -> None:
    samples = clients((20,))[0]
    dataset = torch.utils.data.TensorDataset(samples.x, samples.y)
    how = LocalTraining(batch_size=16)
    engines = [
        Simulator([kind], network, training=how, seed=0)
        for kind in (samples, (samples.x, samples.y), dataset)
    ]
    digests = {states.digest(train(engine, 1, members=(0,))) for engine in engines}
    assert len(digests) == 1


def test_a_model_that_needs_the_usual_memory_layout_trains() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.head = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(72, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.features(x).view(len(x), -1))
            return out

    engine = simulator(make_model=Viewing)
    engine.train_round(engine.initial_state(), (0, 1), phase="training", number=1)
