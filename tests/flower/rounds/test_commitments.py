from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from secede.erasure import CanaryCommitment, commit_to_samples
from secede.flower._flwr import act_as_server
from secede.flower.protocol import messages
from secede.flower.rounds.commitments import Commitments, pop_told


def commitment(salt: int = 0, count: int = 10) -> CanaryCommitment:
    rows = [bytes([n % 256]) for n in range(count)]
    return CanaryCommitment(
        commitment=commit_to_samples(rows, bytes([salt]) * 32), kind="made-up", copies=3, share=0.02
    )


def update(record: ConfigRecord | None) -> Message:
    act_as_server(7)
    reply = Message(RecordDict(), reply_to=Message(RecordDict(), 5, "train"))
    if record is not None:
        messages.add_canaries(reply, record)
    return reply


def test_a_commitment_comes_as_it_was_sent() -> None:
    reply = update(messages.canaries_record(commitment(), ""))
    assert pop_told(reply, "site-1") == (commitment(), "")
    assert not reply.content.config_records
    assert pop_told(reply, "site-1") == (None, "")


def test_the_first_commitment_counts_and_another_one_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    commitments = Commitments({"site-0": commitment(3)})
    first, other = commitment(1), commitment(2)
    assert commitments.take("site-1", (first, "")) is first
    for _ in range(3):
        assert commitments.take("site-1", (commitment(1), "")) is None
        assert commitments.take("site-1", (other, "")) is None
        assert commitments.take("site-0", (other, "")) is None
    assert caplog.text.count("client 'site-1': it commits to other canaries than before") == 1
    assert caplog.text.count("client 'site-0': it commits to other canaries than before") == 1


def test_who_has_none_is_said_once_and_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="secede")
    commitments = Commitments({"site-0": commitment()})
    for _ in range(2):
        commitments.take("site-1", (None, "no canaries were planted: too small"))
        commitments.log_missing(["site-2", "site-0", "site-1"])
    assert caplog.text.count("client 'site-1': no canaries were planted: too small") == 1
    assert caplog.text.count("no canaries at site-1, site-2: whether a trace is left") == 1


WHOLE = commitment().model_dump(mode="json")


@pytest.mark.parametrize(
    "record",
    [
        {"json": ""},
        {"json": "[]"},
        {"json": "{}"},
        {"json": b"{}"},
        {"json": 5},
        {"json": "[" * 10**5},
        {"json": " " * 5000 + "{}"},
        {"json": "\x1b[2J"},
        {"json": commitment(count=300).model_dump_json()},
        *(
            {"json": commitment().model_copy(update={name: value}).model_dump_json()}
            for name, value in (
                ("share", 2.0),
                ("share", -1.0),
                ("copies", 0),
                ("copies", 10**9),
                ("kind", "a\nb"),
                ("commitment", None),
            )
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_malformed_commitment_is_named_and_ignored(
    record: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    reply = update(ConfigRecord(record))
    assert pop_told(reply, "site-1") == (None, "")
    assert not reply.content.config_records
    (line,) = caplog.messages
    assert line.startswith("client 'site-1' counts as one without canaries: ")
    assert line.isprintable()
    assert len(line) < 500


@pytest.mark.parametrize("reason", [5, b"x", "", "x" * 10**5, "\x1b[2J\n"])
def test_a_reason_is_words_and_short(reason: Any) -> None:
    committed, said = pop_told(update(ConfigRecord({"reason": reason})), "site-1")
    assert committed is None
    assert len(said) <= 400
    assert said.isprintable()
