"""Apps that train as any others do, and from which everybody can be erased."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from harness.flower.inprocess import Answer
from harness.flower.small import (
    CLASSES,
    FEATURES,
    OPTIONS,
    SEED,
    TRAINING,
    Federation,
    initial,
    load_data,
    load_model,
    train_here,
)
from secede import state as states
from secede.data.samples import Samples
from secede.erasure.documents.plan import Margins
from secede.errors import GuardError
from secede.federation.training import orders, train
from secede.flower import ClientErasure, EraseOptions, Store, erase, recording
from secede.seeding import generator

LOOSE = Margins(overall=0.99, per_class=0.99)
SERVER = replace(OPTIONS, methods=(), settings={}, margins=LOOSE, untrusted_leaver=True)


def app_of(train: Callable[[Message, Context], Message], model: Any = load_model) -> ClientApp:
    erasure = ClientErasure(model, load_data, training=TRAINING, seed=SEED, consent=True)
    app = ClientApp(mods=[erasure.mod])
    app.train()(train)
    return erasure.register(app)


def counting_batches(message: Message, context: Context) -> Message:
    """Return what `num-examples` is in an app that returns len(loader) for it."""
    reply = train_here(message, context)
    metrics: Any = reply.content["metrics"]
    metrics["num-examples"] = -(-int(metrics["num-examples"]) // 16)
    return reply


@pytest.mark.parametrize("options", [replace(OPTIONS, margins=LOOSE), SERVER])
def test_a_federation_that_weighs_by_batches_can_be_erased_from(
    federation: Federation, options: EraseOptions
) -> None:
    federation.app = app_of(counting_batches)
    federation.train(3)
    last = federation.store.last_round()
    assert last is not None
    assert [c.weight for c in last.clients] == [4, 6, 8, 3]
    assert federation.told.has("'num-examples' does not count samples at site-0", "len(loader)")
    outcome = federation.erase("name:site-1", options=options)
    assert outcome.state == "promoted"
    assert "wrong-samples" not in str(outcome.failures)
    assert sum("does not count samples" in line for line in federation.told) == 1  # the first round


def test_counts_that_fit_nobody_elses_are_left_out_whatever_weights_count(
    federation: Federation,
) -> None:
    federation.app = app_of(counting_batches)
    federation.train(2)

    def answer(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "query.secede":
            content: Any = reply.content
            text = '{"numbers": {"right": [0, 0, 0], "samples": [9000, 0, 0]}, "samples": 9000}'
            content["secede.answer"] = ConfigRecord({"json": text})
        return reply

    federation.site("site-0").answer = answer
    federation.erase("name:site-1", options=replace(OPTIONS, margins=LOOSE))
    assert federation.told.has("left out: client 'site-0': wrong-samples")


class Decaying(FedAvg):
    """A strategy that changes the config by the round's number, as Flower's own example does."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        if server_round % 2 == 0:
            config["lr"] *= 0.5
        return super().configure_train(server_round, arrays, config, grid)


def malformed_once() -> Answer:
    """Return how a client answers whose first count is malformed: it ends the rung before."""
    counts = list[Message]()

    def answer(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "query.secede":
            counts.append(question)
            if len(counts) == 1:
                content: Any = reply.content
                content["secede.answer"] = ConfigRecord({"json": "{}"})
        return reply

    return answer


def test_retraining_repeats_a_schedule_by_the_rounds_number(federation: Federation) -> None:
    seen = list[tuple[int, float]]()

    def noting(message: Message, context: Context) -> Message:
        config: Any = message.content["config"]
        if context.node_config["partition-id"] == 0:
            seen.append((config["server-round"], config["lr"]))
        return train_here(message, context)

    federation.app = app_of(noting)
    recording(Decaying(fraction_evaluate=0.0), federation.store, online_timeout=0.3).start(
        federation.grid(),
        ArrayRecord(initial()),
        num_rounds=6,
        timeout=5,
        train_config=ConfigRecord({"lr": 0.8}),
    )
    trained = [(1, 0.8), (2, 0.4), (3, 0.4), (4, 0.2), (5, 0.2), (6, 0.1)]
    assert seen == trained
    seen.clear()
    for site in federation.sites:
        site.answer = malformed_once()
    outcome = erase(
        federation.grid(),
        Decaying(fraction_evaluate=0.0),
        federation.store,
        leaver="name:site-1",
        options=SERVER,
        seed=SEED,
        trigger="other",
        round_timeout=0.4,
        online_timeout=0.2,
        pause=0.01,
    )
    assert (outcome.state, outcome.rung) == ("promoted", "retraining")
    assert seen == trained


class Convolutional(nn.Module):
    """A network whose classes come from a convolution, with a linear layer for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Conv1d(FEATURES, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head((x * self.gate(x).sigmoid())[:, :, None])
        return logits[:, :, 0]


def train_convolutional(message: Message, context: Context) -> Message:
    model, samples, content = Convolutional(), Samples(*load_data(context)), message.content
    states.load_into(model, content.array_records["arrays"].to_torch_state_dict())
    train(model, samples, TRAINING, orders=orders(len(samples), 1, generator(SEED, "batches")))
    metrics = MetricRecord({"num-examples": len(samples)})
    update = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(update, reply_to=message)


def test_a_head_that_is_a_convolution_needs_no_number_of_classes(tmp_path: Path) -> None:
    class Own(Federation):
        @property
        def store(self) -> Store:
            return Store(self.folder / "home", Convolutional, name="north", clock=self.clock)

    federation = Own(tmp_path, app=app_of(train_convolutional, Convolutional))
    torch.manual_seed(SEED)
    federation.recording().start(
        federation.grid(),
        ArrayRecord(Convolutional().state_dict()),
        num_rounds=2,
        timeout=5,
        train_config=ConfigRecord({"lr": 0.1}),
    )
    outcome = federation.erase("name:site-1", options=replace(OPTIONS, margins=LOOSE))
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")


def refusing(message: Message, _: Context) -> Message:
    raise ValueError("no data here")


def test_a_training_whose_first_round_all_clients_refuse_raises(federation: Federation) -> None:
    federation.app = app_of(refusing)
    with pytest.raises(GuardError, match="all clients refused the first round: ValueError: no da"):
        federation.train(2)
    assert federation.store.last_round() is None


def test_a_client_that_claims_an_absurd_number_of_samples_is_left_out_and_named(
    federation: Federation,
) -> None:
    def answer(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train":
            metrics: Any = reply.content["metrics"]
            metrics["num-examples"] = 10**9
        return reply

    federation.site("site-2").answer = answer
    federation.train(2)
    for each in federation.store.log.rounds():
        assert {c.client for c in each.clients} == {"site-0", "site-1", "site-3"}
    said = "site-2': its 'num-examples' is 1e+09, above 100,000 and above 1,000 times the median"
    assert federation.told.has(said)


def test_unequal_federations_are_not_taken_for_absurd(federation: Federation) -> None:
    def answer(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train":
            metrics: Any = reply.content["metrics"]
            metrics["num-examples"] = 90_000  # beside 45 to 120
        return reply

    federation.site("site-2").answer = answer
    federation.train(1)
    last = federation.store.last_round()
    assert last is not None
    assert len(last.clients) == 4
