"""What one client sends wrongly is left out and named; training goes on with the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from harness.flower.inprocess import Answer
from harness.flower.small import Federation, client_app, initial
from secede.errors import GuardError
from secede.flower import recording

Change = Callable[[Any], None]


def sending(change: Change, kind: str = "train") -> Answer:
    """Return how a client answers that changes the content of its replies."""

    def answer(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == kind:
            change(reply.content)
        return reply

    return answer


def scaled(by: float | torch.dtype) -> Change:
    def change(content: Any) -> None:
        state = content["arrays"].to_torch_state_dict()
        content["arrays"] = ArrayRecord(
            {n: v * by if isinstance(by, float) else v.to(by) for n, v in state.items()}
        )

    return change


def put(key: str, name: str, value: Any) -> Change:
    return lambda content: content[key].__setitem__(name, value)


def renamed(content: Any) -> None:
    content["metrics"] = MetricRecord({"num-examples": 60, "los": 1.0})


FAULTS: dict[str, tuple[Change, str]] = {
    "no samples": (put("metrics", "num-examples", 0), "no whole number above 0"),
    "half a sample": (put("metrics", "num-examples", 60.5), "no whole number above 0"),
    "a list of samples": (put("metrics", "num-examples", [60, 1]), "no whole number above 0"),
    "not a number": (scaled(float("nan")), "not finite"),
    "infinite": (scaled(float("inf")), "not finite"),
    "float64": (scaled(torch.float64), "no array of torch.float32"),
    "float16": (scaled(torch.float16), "no array of torch.float32"),
    "other names": (
        lambda content: content.__setitem__("arrays", ArrayRecord({"w": torch.zeros(2)})),
        "names differ",
    ),
    "no metrics": (lambda content: content.__delitem__("metrics"), "one of metrics"),
    "no arrays": (lambda content: content.__delitem__("arrays"), "one record of arrays"),
    "further metrics": (put("metrics", "more", 1.0), "other names than others'"),
    "a longer list": (put("metrics", "loss", [1.0, 2.0]), "other names than others'"),
    "a metric misspelt": (renamed, "other names than others'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_reply_is_left_out_and_named(federation: Federation, fault: str) -> None:
    change, reason = FAULTS[fault]
    federation.site("site-0").answer = sending(change)
    federation.train(2)
    last = federation.store.last_round()
    assert last is not None
    assert [each.client for each in last.clients] == ["site-1", "site-2", "site-3"]
    assert all(v.isfinite().all() for v in (federation.store.last_model() or {}).values())
    assert federation.told.has("left out of the round", "'site-0'", reason)


def test_what_all_clients_do_wrongly_ends_the_training(federation: Federation) -> None:
    for site in federation.sites:
        site.answer = sending(put("metrics", "num-examples", 60.5))
    with pytest.raises(GuardError, match="no client sent a valid update: its 'num-examples'"):
        federation.train(1)


def test_one_client_alone_does_not_end_the_training(federation: Federation) -> None:
    federation.site("site-0").answer = sending(scaled(float("nan")))
    for site in federation.sites[1:]:
        site.vanishes = True
    federation.train(1)
    assert federation.store.last_round() is None
    assert federation.told.has("no update came")


def test_one_client_that_speaks_of_secure_aggregation_is_left_out(federation: Federation) -> None:
    def refusing(*_: Any) -> Message:
        raise KeyError("secaggplus_configs")

    federation.site("site-0").app = refusing  # type: ignore[assignment]
    federation.train(1)
    last = federation.store.last_round()
    assert last is not None
    assert len(last.clients) == 3


def evaluate_once(federation: Federation, change: Change) -> Any:
    """Return the metrics of an evaluation in which `change` was made to what site-0 answers."""
    app = client_app()

    @app.evaluate()
    def evaluate(message: Message, _: Any) -> Message:
        from flwr.app import RecordDict

        metrics = MetricRecord({"num-examples": 10, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    federation.app = app
    federation.site("site-0").answer = sending(change, "evaluate")
    result = recording(FedAvg(), federation.store, online_timeout=0.3).start(
        federation.grid(),
        ArrayRecord(initial()),
        num_rounds=1,
        timeout=5,
        train_config=ConfigRecord({"lr": 0.1}),
    )
    return result.evaluate_metrics_clientapp[1]


def test_metrics_of_an_evaluation_that_differ_are_left_out(federation: Federation) -> None:
    metrics = evaluate_once(federation, put("metrics", "more", 1.0))
    assert metrics["accuracy"] == 0.5
    assert federation.told.has("left out of the evaluation")


@pytest.mark.parametrize("weight", [-30, 0, float("nan"), float("inf")])
def test_an_evaluation_whose_weight_cannot_be_is_left_out(
    federation: Federation, weight: float
) -> None:
    metrics = evaluate_once(federation, put("metrics", "num-examples", weight))
    assert metrics["accuracy"] == 0.5
    assert federation.told.has("left out of the evaluation: client 'site-0': its 'num-examples'")


def test_a_clients_error_is_one_clean_line_in_flowers_log_too(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(question: Message, _: Any) -> Message:
        return Message(Error(2, "a\n\x1b[2Jround 9 ended"), reply_to=question)

    federation.site("site-0").app = failing  # type: ignore[assignment]
    federation.train(1)
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.endswith(": ?[2Jround 9 ended") for line in lines)
    assert not any("\x1b" in line for line in lines)
