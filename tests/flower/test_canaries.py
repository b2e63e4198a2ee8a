"""Canaries on a live federation: planted in training, committed to, and read for an erasure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict

from harness.flower.journals import home, told
from harness.flower.mutations import SPITE
from harness.flower.planted import CANARIES, ERASING, PlantedFederation, load_data, verdict
from harness.flower.small import NOW
from secede.canaries import CanaryCounts, CanaryOptions
from secede.erasure import new_request, sign_request
from secede.erasure.documents.canary_reading import ABSENT, NO_CANARIES, UNSOUND
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.signing.keys import Keyring, generate_key_pair, load_private_key
from secede.flower.client import own_canaries
from secede.flower.client.limits import ClientLimits
from secede.flower.client.question_log import QuestionLog

LEAVER = "site-1"
READING = "read-canaries"
SEEN, GONE = (10,) + (0,) * 9, (1,) * 10
Change = Callable[[Message, Message], Message | None]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    PlantedFederation(folder).train()
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "north")
    return tmp_path / "north"


@pytest.fixture
def federation(folder: Path) -> PlantedFederation:
    return PlantedFederation(folder)


def commitments(federation: PlantedFederation) -> dict[str, str]:
    return {name: c.commitment.root for name, c in federation.store.log.canaries().items()}


def readings(federation: PlantedFederation) -> list[Any]:
    return [q for q in QuestionLog(federation.disk(1)).all() if q.task == READING]


def test_commitments_are_in_log_register_and_receipt_and_no_trace_is_found(
    federation: PlantedFederation,
) -> None:
    committed = federation.store.log.canaries()
    assert set(committed) == {f"site-{n}" for n in range(4)}
    first, *later = federation.store.log.rounds()
    assert all(c.canaries is not None for c in first.clients)
    assert all(c.canaries is None for r in later for c in r.clients)  # recorded once
    outcome = federation.erase()
    found = verdict(outcome)
    assert found["forgotten"] == "no-trace-found"
    assert outcome.receipt is not None
    assert told(outcome.receipt)["scope"]["canaries"] == committed[LEAVER].model_dump(mode="json")
    registered = federation.store.home.federation.client(LEAVER).scope.canaries
    assert registered == committed[LEAVER]
    receipt = verify_receipt(outcome.receipt.read_bytes(), Keyring.load(home(federation) / "keys"))
    assert not receipt.readings_signed
    limits = told(outcome.receipt)["limits"]
    assert any("its readings of the canaries are unsigned" in limit for limit in limits)
    asked = readings(federation)
    assert [each.outcome for each in asked] == ["taken"] * len(asked)
    for name in (own_canaries.SALT, own_canaries.SECRET, own_canaries.COMMITMENT):
        assert (federation.disk(1) / name).exists()  # an erased client may still read offline


def test_a_client_that_has_a_key_signs_its_readings(
    federation: PlantedFederation, tmp_path: Path
) -> None:
    private, public = generate_key_pair(tmp_path / "keys", LEAVER)
    federation.site(LEAVER).config["secede-key"] = str(private)
    federation.erase("name:site-0")  # a home with keys
    shutil.copy(public, home(federation) / "keys")
    asked = new_request(
        federation="north",
        client=LEAVER,
        trigger="objection",
        model=federation.store.serving_digest() or "",
        server=federation.store.home.server_id,
        now=NOW,
    )
    signed = sign_request(asked, load_private_key(private))
    outcome = federation.erase(f"name:{LEAVER}", request=signed, trigger=None)
    assert outcome.receipt is not None
    receipt = verify_receipt(outcome.receipt.read_bytes(), Keyring.load(home(federation) / "keys"))
    assert receipt.readings_signed


def test_a_signature_by_a_key_that_the_server_does_not_know_is_dropped(
    federation: PlantedFederation, tmp_path: Path
) -> None:
    private, _ = generate_key_pair(tmp_path / "keys", LEAVER)
    federation.site(LEAVER).config["secede-key"] = str(private)
    found = verdict(federation.erase())
    assert found["forgotten"] == "no-trace-found"
    assert found["canaries"]["before"]["envelope"] is None
    assert federation.told.has("signs with a key that is not known here")


def ranked(monkeypatch: pytest.MonkeyPatch, *looks: tuple[int, ...]) -> None:
    """Let canaries rank so in one model after the other."""
    left = [*looks]

    def read(*_: Any) -> CanaryCounts:
        ranks = left.pop(0) if len(left) > 1 else left[0]
        return CanaryCounts(sum(ranks), ((10, ranks),), 10 if ranks == SEEN else 5)

    monkeypatch.setattr(own_canaries, "read", read)


def test_a_trace_leads_to_the_next_rung(
    federation: PlantedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked(monkeypatch, SEEN, SEEN, SEEN, GONE)
    outcome = federation.erase()
    assert (outcome.state, outcome.rung) == ("promoted", "server-side")
    (failure,) = outcome.failures
    assert (failure.rung, failure.outcome) == ("local-step", "trace-found")
    assert verdict(outcome)["forgotten"] == "no-trace-found"


def test_retraining_ends_it_whatever_the_client_says(
    federation: PlantedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked(monkeypatch, SEEN)
    outcome = federation.erase()
    assert (outcome.state, outcome.rung) == ("promoted", "retraining")
    assert verdict(outcome)["forgotten"] == "by-construction"


def test_a_leaver_that_is_offline_leaves_it_undetermined(federation: PlantedFederation) -> None:
    federation.site(LEAVER).online = False
    outcome = federation.erase()
    assert (outcome.state, outcome.rung) == ("promoted", "server-side")
    found = verdict(outcome)
    assert (found["forgotten"], found["canaries"]["absent"]) == ("undetermined", ABSENT)


def body(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Return an answer with another reading than the honest one."""

    def answer(_: Message, reply: Message) -> Message:
        content: Any = reply.content
        found = json.loads(content["secede.answer"]["json"])
        if "canaries" in found:
            changed = change(found)
            text = changed if isinstance(changed, str) else json.dumps(changed or found)
            content["secede.answer"] = ConfigRecord({"json": text})
        return reply

    return answer


def reading(**values: Any) -> Change:
    return body(lambda found: found["canaries"]["reading"].update(values))


def failing(question: Message, reply: Message) -> Message:
    content: Any = reply.content
    if "canaries" in content["secede.answer"]["json"]:
        return Message(Error(9, SPITE), reply_to=question)
    return reply


def without_records(question: Message, reply: Message) -> Message:
    content: Any = reply.content
    is_reading = "canaries" in content["secede.answer"]["json"]
    return Message(RecordDict(), reply_to=question) if is_reading else reply


HOSTILE: dict[str, Change] = {
    "text": body(lambda _: SPITE),
    "deep": body(lambda _: "[" * 10**5),
    "nothing": body(lambda _: "{}"),
    "no reading": body(lambda _: {"canaries": {}}),
    "numbers": body(lambda _: {"numbers": {"right": [1], "samples": [1]}, "samples": 1}),
    "state error": body(lambda _: {"error": "StateError", "text": SPITE}),
    "storage error": body(lambda _: {"error": "StorageError", "text": SPITE}),
    "huge": body(lambda found: {"canaries": {**found["canaries"], "envelope": "x" * 10**6}}),
    "ranks": reading(ranks=[[10**400] + [0] * 9]),
    "negative": reading(ranks=[[-1, 11] + [0] * 8]),
    "ragged": reading(ranks=[[5], 5]),
    "wins": reading(wins=10**6),
    "fractions": reading(count=10.0),
    "another root": reading(root="00" * 32),
    "another model": reading(model="00" * 32),
    "another client": reading(client="site-2"),
    "another request": reading(request="00" * 32),
    "another count": reading(count=9, ranks=[[9] + [0] * 9], wins=9),
    "spite": reading(client=SPITE),
    "no records": without_records,
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_reading_is_named_and_no_erasure_depends_on_it(
    federation: PlantedFederation, change: Change
) -> None:
    federation.site(LEAVER).answer = change
    outcome = federation.erase()
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    found = verdict(outcome)
    assert (found["forgotten"], found["canaries"]["absent"]) == ("undetermined", UNSOUND)
    (line,) = [each for each in federation.told if "were not read" in each]
    assert LEAVER in line
    assert line.isprintable()
    assert len(line) < 800


def test_an_app_that_fails_at_a_reading_is_asked_again_and_then_absent(
    federation: PlantedFederation,
) -> None:
    federation.site(LEAVER).answer = failing
    outcome = federation.erase()
    assert outcome.state == "promoted"
    assert verdict(outcome)["forgotten"] == "undetermined"


def test_other_canaries_after_than_before_count_for_nothing(federation: PlantedFederation) -> None:
    came = list[int]()

    def other(found: dict[str, Any]) -> None:
        came.append(1)
        if len(came) > 1:
            found["canaries"]["reading"].update(ranks=[[10, 0, 0]], wins=10)

    federation.site(LEAVER).answer = body(other)
    outcome = federation.erase()
    assert outcome.state == "promoted"
    found = verdict(outcome)
    assert (found["forgotten"], found["canaries"]["absent"]) == ("undetermined", UNSOUND)
    assert found["canaries"]["before"] is not None


def test_a_client_answers_for_models_that_it_knows_and_few_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = PlantedFederation(folder, limits=ClientLimits(readings=1))
    outcome = federation.erase()
    assert [each.outcome for each in readings(federation)] == ["taken", "refused"]
    assert verdict(outcome)["canaries"]["absent"] == UNSOUND
    assert federation.told.has("answers no more")


def test_a_model_from_nowhere_is_not_read(
    federation: PlantedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.flower.backend import FlowerBackend

    asked = FlowerBackend.read_canaries

    def made_up(self: Any, client: str, state: Any, plan: Any, model: str) -> Any:
        strange = {name: torch.full_like(value, 9.0) for name, value in state.items()}
        return asked(self, client, strange, plan, model)

    monkeypatch.setattr(FlowerBackend, "read_canaries", made_up)
    assert verdict(federation.erase())["canaries"]["absent"] == UNSOUND
    question = readings(federation)[-1]
    assert question.outcome == "refused"
    assert "knows the model from no round" in question.reason


@pytest.mark.parametrize(("consent", "read"), [(False, False), (True, True)])
def test_canaries_of_own_samples_are_read_if_the_owner_consents(
    tmp_path: Path, *, consent: bool, read: bool
) -> None:
    # Ranks of a single sample of its own, in models that a server makes up, would tell of it.
    kind = CanaryOptions(count=10, copies=3, max_share=0.1, kind="mislabelled")
    federation = PlantedFederation(tmp_path, canaries=kind, consent=consent)
    federation.train()
    absent = verdict(federation.erase())["canaries"]["absent"]
    assert (absent is None) is read
    refused = [each for each in readings(federation) if each.outcome == "refused"]
    assert (refused == []) is read
    assert all("neither signed nor released" in each.reason for each in refused)


# Commitments


def replaced(text: str) -> Change:
    def answer(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            reply.content["secede.canaries"] = ConfigRecord({"json": text})
        return reply

    return answer


def test_a_malformed_commitment_ends_no_training(tmp_path: Path) -> None:
    federation = PlantedFederation(tmp_path)
    federation.site(LEAVER).answer = replaced('{"root": "\x1b[2J"}')
    federation.train(2)
    assert {each.client for each in federation.store.log.rounds()[-1].clients} >= {LEAVER}
    assert set(commitments(federation)) == {"site-0", "site-2", "site-3"}
    assert federation.told.has("'site-1' counts as one without canaries")
    outcome = federation.erase()
    assert outcome.state == "promoted"
    found = verdict(outcome)
    assert (found["forgotten"], found["canaries"]["absent"]) == ("undetermined", NO_CANARIES)


def test_a_commitment_cannot_be_changed_later(federation: PlantedFederation) -> None:
    before = commitments(federation)
    shutil.rmtree(federation.disk(1))  # a new salt, and other canaries
    federation.train(1)
    assert commitments(federation) == before
    assert federation.told.has("'site-1': it commits to other canaries than before")
    found = verdict(federation.erase())
    assert (found["forgotten"], found["canaries"]["absent"]) == ("undetermined", UNSOUND)


def test_clients_without_canaries_and_too_small_ones_are_named_in_the_first_round(
    tmp_path: Path,
) -> None:
    def few(context: Any) -> Any:
        x, y = load_data(context)
        return (x[:40], y[:40]) if context.node_config["partition-id"] == 2 else (x, y)

    federation = PlantedFederation(tmp_path, load=few)
    federation.train(2)
    assert set(commitments(federation)) == {"site-0", "site-1", "site-3"}
    said = [line for line in federation.told if line.startswith("client 'site-2': no canaries")]
    assert said == [f"client 'site-2': {CANARIES.why_too_small(40)}"]
    assert federation.told.has("no canaries at site-2: whether a trace is left")
    assert ERASING.measure_at_leaver
