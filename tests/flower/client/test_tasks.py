"""What a client's data may look like, and what is refused while it still trains."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset

from harness.flower.small import FEATURES, NOW, OPTIONS, Federation, load_model, samples, strategy
from secede.errors import ConfigError, DataError, GuardError
from secede.flower import ClientErasure, Store, erase, recording
from secede.flower.client.tasks import load_samples, preserved_randomness
from secede.seeding import torch_seeded


class Named(Dataset[dict[str, Any]]):
    """Samples as mappings, as Flower's own quickstart has them."""

    def __init__(self, client: int, **more: Any) -> None:
        self.samples, self.more = samples(client), more

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"img": self.samples.x[place], "label": int(self.samples.y[place]), **self.more}


def test_samples_may_call_their_parts_by_names() -> None:
    found = load_samples((DataLoader(Named(0), batch_size=16), None))
    assert torch.equal(found.x, samples(0).x)
    assert torch.equal(found.y, samples(0).y)
    more = Named(0, place=3)
    with pytest.raises(
        ConfigError, match=r"'img', 'label', 'place': give those of input and label"
    ):
        load_samples(more)
    assert torch.equal(load_samples(more, keys=("img", "label")).x, samples(0).x)
    with pytest.raises(ConfigError, match="but samples have the entries 'img'"):
        load_samples(more, keys=("x", "label"))


def test_a_loaders_own_collate_and_sampler_count() -> None:
    here = samples(0)

    def collate(items: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        return [torch.stack([x for x, _ in items]) * 2, torch.stack([y for _, y in items])]

    loader = DataLoader(
        TensorDataset(here.x, here.y),
        batch_size=16,
        collate_fn=collate,
        sampler=SubsetRandomSampler([5, 3, 9]),
    )
    found = load_samples(loader)
    assert torch.equal(found.x, here.x[[3, 5, 9]] * 2)
    assert torch.equal(found.y, here.y[[3, 5, 9]])
    assert len(load_samples(loader, most=2)) == 2


def test_inputs_come_in_the_networks_floats_and_tokens_stay() -> None:
    x, y = np.zeros((4, 2)), np.zeros(4, dtype=np.int64)
    assert load_samples((x, y)).x.dtype == torch.float32
    assert load_samples((x, y), floats=torch.float64).x.dtype == torch.float64
    assert load_samples((x.astype(np.int64), y)).x.dtype == torch.int64
    with pytest.raises(ConfigError, match="no samples"):
        load_samples([])


def test_a_trial_draws_nothing_from_the_users_generators() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    expected = drawn()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    with preserved_randomness():
        drawn()
    assert drawn() == expected


# A whole federation


def federation(
    folder: Path, model: Callable[[], nn.Module], load: Callable[[Context], Any]
) -> tuple[Federation, Store]:
    erasure = ClientErasure(model, load, consent=True)
    app = ClientApp(mods=[erasure.mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content: Any = message.content
        here = load_samples(load(context), floats=next(model().parameters()).dtype)
        network = model()
        network.load_state_dict(content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(network.parameters(), lr=0.5)
        for _ in range(20):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(here.x), here.y).backward()
            optimiser.step()
        update = {"arrays": ArrayRecord(network.state_dict())}
        metrics = {"metrics": MetricRecord({"num-examples": len(here)})}
        return Message(RecordDict({**update, **metrics}), reply_to=message)

    made = Federation(folder, app=erasure.register(app))
    return made, Store(folder / "home", model, name="north", clock=lambda: NOW)


def run(made: Federation, store: Store, model: Callable[[], nn.Module]) -> Any:
    with torch_seeded(0):
        begin = model().state_dict()
    recording(strategy(), store, online_timeout=0.3).start(
        made.grid(), ArrayRecord(begin), num_rounds=1, timeout=5
    )
    if store.last_round() is None:
        return None
    return erase(
        made.grid(),
        strategy(),
        store,
        leaver="name:site-1",
        trigger="other",
        options=OPTIONS,
        round_timeout=0.4,
        online_timeout=0.2,
        pause=0.01,
    )


def partition(context: Context) -> int:
    return int(context.node_config["partition-id"])


def token_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(60, 4), nn.Flatten(), nn.Linear(4 * FEATURES, 3))


def tokens(context: Context) -> tuple[Tensor, Tensor]:
    here = samples(partition(context))
    return (here.x * 20).long(), here.y


def doubles(context: Context) -> tuple[Tensor, Tensor]:
    here = samples(partition(context))
    return here.x.double(), here.y


def halves(context: Context) -> tuple[Tensor, Tensor]:
    here = samples(partition(context))
    return here.x.half(), here.y


@pytest.mark.parametrize(
    ("model", "load"),
    [
        (load_model, lambda context: DataLoader(Named(partition(context)), batch_size=16)),
        (token_model, tokens),
        (lambda: load_model().double(), doubles),
        (lambda: load_model().half(), halves),
    ],
    ids=["names", "tokens", "doubles", "halves"],
)
def test_a_client_is_erased_whatever_form_its_data_has(
    tmp_path: Path, model: Callable[[], nn.Module], load: Callable[[Context], Any]
) -> None:
    made, store = federation(tmp_path, model, load)
    outcome = run(made, store, model)
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")


def test_data_that_no_step_could_use_is_refused_in_the_first_round(tmp_path: Path) -> None:
    def floats(context: Context) -> tuple[Tensor, Tensor]:
        return samples(partition(context)).x, torch.rand(len(samples(partition(context))))

    erasure = ClientErasure(load_model, floats)
    called = list[str]()
    with pytest.raises(ConfigError, match=r"could not be erased later: labels: found torch.float"):
        call(erasure, tmp_path, called)
    assert called == []
    wide = ClientErasure(lambda: nn.Linear(7, 3), lambda _: (samples(0).x, samples(0).y))
    with pytest.raises(ConfigError, match=r"could not be erased later: RuntimeError: mat1"):
        call(wide, tmp_path, called)
    few = ClientErasure(lambda: nn.Linear(FEATURES, 2), lambda _: (samples(0).x, samples(0).y))
    with pytest.raises(ConfigError, match="labels beyond the network's 2 outputs"):
        call(few, tmp_path, called)
    one = ClientErasure(  # of the first samples all are of class 0
        lambda: nn.Linear(FEATURES, 1),
        lambda _: (samples(0).x, torch.zeros_like(samples(0).y)),
        loss=lambda outputs, labels: outputs.mean(),
    )
    with pytest.raises(ConfigError, match="the network has one output"):
        call(one, tmp_path, called)


def call(erasure: ClientErasure, folder: Path, called: list[str], run: int = 1) -> Message:
    Federation(folder).grid()  # a process of a ServerApp
    message = Message(RecordDict({"arrays": ArrayRecord(load_model().state_dict())}), 5, "train")
    message.metadata.__dict__["_run_id"] = run
    config: Any = {"partition-id": 0, "secede-folder": str(folder)}

    def train(message: Message, _: Context) -> Message:
        called.append("train")
        update = RecordDict({"arrays": ArrayRecord(load_model().state_dict())})
        return Message(update, reply_to=message)

    return erasure.mod(message, Context(run, 5, config, RecordDict(), {}), train)


def test_data_are_tried_once_in_each_training(tmp_path: Path) -> None:
    loaded = []

    def load(_: Context) -> tuple[Tensor, Tensor]:
        loaded.append(1)
        return samples(0).x, samples(0).y

    erasure = ClientErasure(load_model, load)
    for run_id in (1, 1, 1, 2):
        call(erasure, tmp_path, [], run_id)
    assert len(loaded) == 2


def test_a_weight_that_is_no_whole_number_is_refused_while_training(tmp_path: Path) -> None:
    made = Federation(tmp_path)

    def half(question: Message, reply: Message) -> Message:
        metrics: Any = reply.content
        metrics["metrics"]["num-examples"] += 0.5
        return reply

    for site in made.sites:
        site.answer = half
    with pytest.raises(GuardError, match="no whole number above 0"):
        made.train(1)
    assert made.store.last_round() is None


def test_bytes_are_scaled_whatever_the_floats() -> None:
    x = np.full((2, 3), 255, dtype=np.uint8)
    found = load_samples((x, np.zeros(2, dtype=np.int64)), floats=torch.float64).x
    assert found.dtype == torch.float64
    assert found.max() == 1
    with pytest.raises(DataError, match="bool"):
        load_samples((x > 0, np.zeros(2, dtype=np.int64)))


def test_a_refusal_in_training_is_named_at_the_server(tmp_path: Path) -> None:
    def load(context: Context) -> tuple[Tensor, Tensor]:
        here = samples(partition(context))
        return here.x, here.y + 3 * (partition(context) == 2)

    made, store = federation(tmp_path, load_model, load)
    run(made, store, load_model)
    assert made.told.has("left out", "'site-2'", "could not be erased later", "labels beyond")
    assert {each.client for each in store.log.rounds()[0].clients} == {"site-0", "site-1", "site-3"}
