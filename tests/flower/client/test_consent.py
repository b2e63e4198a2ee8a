"""Who lets a step be taken, what is asked and deleted: `flower/client/question_log.py` too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from benchmarks.threats.reconstruction import planned
from harness.flower.journals import told
from harness.flower.kept import B, disk, keep
from harness.flower.secure import SecureFederation
from harness.flower.small import STEP, Federation, client_app
from secede.erasure.documents.ledger_rows import PlanBody
from secede.erasure.documents.request import (
    Request,
    new_request,
    sign_request,
    unverified_request,
)
from secede.erasure.signing.keys import generate_key_pair, load_private_key
from secede.erasure.storage.ledger import Ledger
from secede.errors import ConfigError
from secede.flower.client.consent import Release, release, revoke
from secede.flower.client.limits import ClientLimits
from secede.flower.client.question_log import QuestionLog
from secede.flower.protocol import messages
from secede.flower.storage.store import Store
from secede.unlearning import client_tasks


def now() -> datetime:
    return datetime.now(UTC)


def trained(folder: Path, **options: Any) -> Federation:
    federation = Federation(folder, app=client_app(**{"consent": False, **options}))
    federation.train(2)
    return federation


def questions(federation: Federation, client: int = 1) -> list[tuple[str, str, str]]:
    log = QuestionLog(disk(federation, client).folder)
    return [(each.task, each.outcome, each.reason) for each in log.all()]


def signed(federation: Federation, key: Path, **changes: Any) -> bytes:
    model = federation.store.serving_digest() or "0" * 64
    usual = {"federation": "north", "client": "site-1", "trigger": "objection", "model": model}
    request = new_request(**{**usual, "now": now(), **changes})
    return sign_request(request, load_private_key(key))


def ask(
    federation: Federation, state: Any = None, client: int = 1, plan: str = "", **fields: Any
) -> dict[str, Any] | None:
    """Ask a client; return its error, or None if it answered."""
    import json

    grid, model = federation.grid(), federation.store.last_model()
    assert model is not None
    usual: dict[str, Any] = {"task": client_tasks.COUNT, "client": client, "number": 0}
    header = messages.TaskHeader(**{**usual, "home": federation.store.identity, **fields})
    node = federation.sites[client].node
    (reply,) = grid.send_and_receive(
        [messages.task_message(node, header, state or model, plan=plan, ttl=10)]
    )
    content = json.loads(str(reply.content.config_records["secede.answer"]["json"]))
    return content if "error" in content else None


def step(federation: Federation, request: bytes, **fields: Any) -> dict[str, Any] | None:
    own = disk(federation, 1).all()[0].digest or federation.store.update_digests().popitem()[1]
    usual = {"method": "projected-ascent", "settings": STEP, "weight": 0.0}
    task = {"task": client_tasks.LOCAL_STEP, "request": request.decode(), "own": own}
    asked = {**task, **usual, **fields}
    if request and "plan" not in asked:
        asked["plan"] = planned(asked["request"], asked["method"], asked["settings"])
    return ask(federation, **asked)


# A step


def test_without_consent_no_step_is_taken_and_the_erasure_takes_the_next_rung(
    tmp_path: Path,
) -> None:
    federation = trained(tmp_path)
    outcome = federation.erase()
    assert (outcome.state, outcome.failures[0].outcome) == ("promoted", "unable")
    assert outcome.rung == "server-side"
    assert federation.told.has("has neither signed nor released request", "client release FOLDER")
    (task, result, reason), *_ = questions(federation)
    assert (task, result) == ("local-step", "refused")
    assert "neither signed nor released" in reason


@pytest.mark.parametrize("how", ["federation", "callable", "bool"])
def test_with_consent_it_is_taken(tmp_path: Path, how: str) -> None:
    seen = list[Request]()

    def noted(request: Request) -> bool:
        seen.append(request)
        return True

    consent: dict[str, bool | Callable[[Request], bool]] = {
        "federation": False,
        "callable": noted,
        "bool": True,
    }
    federation = trained(tmp_path, consent=consent[how])
    if how == "federation":
        release(disk(federation, 1).folder, Release(federation="north"))
    assert federation.erase().rung == "local-step"
    assert [request.client for request in seen] == ["site-1"] * (how == "callable")


def test_a_release_is_for_one_request_or_federation_until_a_day(tmp_path: Path) -> None:
    federation = trained(tmp_path)
    generate_key_pair(tmp_path / "operator", "operator")
    request = signed(federation, tmp_path / "operator" / "operator.key")
    digest = unverified_request(request).digest()
    folder = disk(federation, 1).folder
    for wrong in (
        Release(federation="south"),
        Release(request="0" * 64),
        Release(federation="north", until="2026-01-01T00:00:00Z"),
    ):
        release(folder, wrong)
        found = step(federation, request)
        assert found is not None
        assert f"secede client release FOLDER --request {digest}" in found["text"]
    release(folder, Release(request=digest))
    assert step(federation, request) is None
    assert revoke(folder) == 4
    assert step(federation, request) is not None
    assert step(federation, b"") is not None


def test_the_owners_signature_is_consent_and_nobody_elses_is(tmp_path: Path) -> None:
    for name in ("owner", "other"):
        generate_key_pair(tmp_path / "keys", name)
    federation = trained(tmp_path, owner=tmp_path / "keys" / "owner.pub")
    own, other = (tmp_path / "keys" / f"{name}.key" for name in ("owner", "other"))
    assert step(federation, signed(federation, own)) is None
    refused = step(federation, signed(federation, other))
    assert refused is not None
    assert "neither signed nor released" in refused["text"]
    altered = signed(federation, own).replace(b'"payload":"ey', b'"payload":"fy')
    refused = step(federation, altered, plan="")
    assert refused is not None
    assert "its request cannot be used" in refused["text"]
    early = datetime(2025, 1, 1, tzinfo=UTC)
    expired = step(federation, signed(federation, own, now=early))
    assert expired is not None
    assert "it expired long ago" in expired["text"]


def test_a_server_that_was_signed_for_gets_no_step_beyond_the_bounds(tmp_path: Path) -> None:
    federation = trained(tmp_path, consent=True)
    generate_key_pair(tmp_path / "operator", "operator")
    request = signed(federation, tmp_path / "operator" / "operator.key")
    model = federation.store.last_model() or {}
    made = {name: value + 10 for name, value in model.items()}
    for fields, words in (
        ({"settings": {**STEP, "clip": 1e12}}, "clip is 1e+12"),
        ({"settings": {**STEP, "batch_size": 90}}, "hardly more than a gradient"),
        ({"weight": 0.95}, "a share of 0.95"),
        ({"method": "gradient-ascent", "settings": {}}, "not allowed here"),
        ({"method": "reference", "settings": {}}, "not allowed here"),
        ({"state": made}, "knows the model from no round"),
        ({"home": "0" * 64, "own": None}, "kept no update of this federation"),
    ):
        found = step(federation, request, **fields)
        assert found is not None
        assert words in found["text"]
    assert len([each for each in questions(federation) if each[1] == "refused"]) == 7


def test_a_step_is_the_plans_and_its_digest_is_in_the_log(tmp_path: Path) -> None:
    federation = trained(tmp_path, consent=True)
    generate_key_pair(tmp_path / "operator", "operator")
    one, two = (
        signed(federation, tmp_path / "operator" / "operator.key").decode() for _ in range(2)
    )
    other = {**STEP, "epochs": 2}
    for plan, words in (
        ("", "has no 'secede.plan'"),
        ("{}", "the step's plan is malformed"),
        (planned(two, "projected-ascent", STEP), "is for another request"),
        (planned(one, "projected-ascent", other), "not those of the plan"),
        (planned(one, "second-choice", {}), "not those of the plan"),
    ):
        found = step(federation, one.encode(), plan=plan)
        assert found is not None
        assert words in found["text"]
    federation.erase()
    (asked,) = (
        each
        for each in QuestionLog(disk(federation, 1).folder).all()
        if each.is_step and each.outcome == "taken"
    )
    with Ledger(federation.store.home.ledger, read_only=True) as ledger:
        plans = {row.document.plan for row in ledger.rows() if isinstance(row.document, PlanBody)}
    assert asked.plan in plans


def test_a_client_offers_no_bare_gradient() -> None:
    with pytest.raises(ConfigError, match="'gradient-ascent' is no local step that a client takes"):
        client_app(methods=("gradient-ascent",))


@pytest.mark.parametrize("share", [0.0, 1e-300, 1e-6, 9e-4])
def test_a_hidden_update_is_no_part_of_a_step_from_a_mean_without_it(
    tmp_path: Path, share: float
) -> None:
    federation = SecureFederation(tmp_path)
    federation.train(2)
    generate_key_pair(tmp_path / "operator", "operator")
    request = signed(federation, tmp_path / "operator" / "operator.key")
    found = step(federation, request, weight=share)
    assert found is not None
    assert "takes no step from a mean that it is not in" in found["text"]
    assert step(federation, request, weight=0.3) is None


def test_who_hides_its_updates_takes_no_step_unless_its_owner_allows_it(tmp_path: Path) -> None:
    federation = SecureFederation(tmp_path, limits=ClientLimits())
    federation.train(2)
    generate_key_pair(tmp_path / "operator", "operator")
    request = signed(federation, tmp_path / "operator" / "operator.key")
    found = step(federation, request, weight=0.3)
    assert found is not None
    assert "hides its updates and takes no local step" in found["text"]
    assert "limits=ClientLimits(hidden_steps=1)" in found["text"]
    outcome = federation.erase("name:site-1")
    assert (outcome.state, outcome.rung) == ("promoted", "server-side")


def test_who_hides_its_updates_takes_one_step_for_a_request_and_two_in_a_month(
    tmp_path: Path,
) -> None:
    # Their noise is drawn anew, and averages away.
    federation = SecureFederation(tmp_path, limits=ClientLimits(hidden_steps=1))
    federation.train(2)
    generate_key_pair(tmp_path / "operator", "operator")
    requests = [signed(federation, tmp_path / "operator" / "operator.key") for _ in range(3)]
    assert step(federation, requests[0], weight=0.3) is None
    assert step(federation, requests[0], weight=0.3) is None  # the same again tells no more
    found = step(federation, requests[0], weight=0.31)
    assert found is not None
    assert "has answered 1 questions for this request" in found["text"]
    assert step(federation, requests[1], weight=0.3) is None
    found = step(federation, requests[2], weight=0.3)
    assert found is not None
    assert "has answered 2 questions with steps in thirty days" in found["text"]


def test_each_client_number_and_each_request_counts_as_a_step(tmp_path: Path) -> None:
    federation = trained(tmp_path, consent=True, limits=ClientLimits(steps=2, monthly_steps=3))
    generate_key_pair(tmp_path / "operator", "operator")
    one, other = (signed(federation, tmp_path / "operator" / "operator.key") for _ in range(2))

    def taken(request: bytes, number: int) -> str:
        # Each has batches of its own; with the same noise, their differences would have none.
        state = federation.store.last_model()
        found = step(federation, request, state=state, number=number)
        return "" if found is None else found["text"]

    assert [taken(one, number) for number in (0, 1, 0)] == [""] * 3
    assert "has answered 2 questions for this request" in taken(one, 2)
    assert taken(other, 2) == ""
    assert "has answered 3 questions with steps in thirty days" in taken(other, 3)


# Counts


def test_counts_are_few_of_known_models_and_in_the_log(tmp_path: Path) -> None:
    federation = trained(tmp_path, limits=ClientLimits(questions=4, monthly=6))
    model = federation.store.last_model() or {}
    near = [{name: value + 1e-3 * n for name, value in model.items()} for n in range(9)]
    made = ask(federation, {name: value * 100 for name, value in model.items()})
    assert made is not None
    assert "this client knows the model from no round" in made["text"]
    assert [ask(federation, state) for state in near[:3]] == [None] * 3
    found = ask(federation, near[3])
    assert found is not None
    assert "has answered 4 questions for this request" in found["text"]
    assert ask(federation, near[0]) is None  # again: it tells nothing new
    generate_key_pair(tmp_path / "operator", "operator")
    requests = [signed(federation, tmp_path / "operator" / "operator.key") for _ in range(2)]
    asked = [ask(federation, state, request=requests[0].decode()) for state in near[3:5]]
    assert asked == [None] * 2
    found = ask(federation, near[5], request=requests[1].decode())
    assert found is not None
    assert "has answered 6 questions in thirty days" in found["text"]
    outcomes = [outcome for _, outcome, _ in questions(federation)]
    # The unknown model counts, too: by what is refused a server could find out what is known.
    first = ["taken", "refused"]
    assert outcomes == [*first, *["taken"] * 3, "refused", *["taken"] * 3, "refused"]


# Deletion


def leave(federation: Federation, record: ConfigRecord) -> None:
    content = RecordDict({"secede.task": record})
    message = Message(content, federation.sites[1].node, messages.LEAVE_TYPE, ttl=10)
    list(federation.grid().send_and_receive([message]))


def receipt_of(federation: Federation, leaver: str) -> tuple[str, str]:
    """Erase a client; return the server's key and the receipt."""
    outcome = federation.erase(leaver)
    assert outcome.receipt is not None
    public = (federation.store.home.keys / "server.pub").read_text()
    return public, outcome.receipt.read_text()


def test_updates_are_deleted_for_the_receipt_of_the_homes_server_alone(tmp_path: Path) -> None:
    federation = trained(tmp_path / "north", consent=True)
    home, updates = federation.store.identity, disk(federation, 1)
    other = trained(tmp_path / "south", consent=True)
    key, receipt = receipt_of(federation, "name:site-2")  # another client's
    stranger, forged = receipt_of(other, "name:site-1")  # of another server
    kept = len(updates.all())
    for record in (
        ConfigRecord({"home": home}),
        ConfigRecord({"json": "{}"}),
        *(
            ConfigRecord({"json": messages.Deletion(home=home, key=k, receipt=r).model_dump_json()})
            for k, r in ((key, receipt), (stranger, forged), (key, forged))
        ),
    ):
        leave(federation, record)
        assert len(updates.all()) == kept
    assert [outcome for task, outcome, _ in questions(federation) if task == "leave"] == [
        "refused"
    ] * 5
    *_, own = receipt_of(federation, "name:site-1")
    assert updates.all() == ()
    (path,) = updates.folder.glob("receipt-*.json")
    assert path.read_text() == own
    assert told(path)["request"]["client"] == "site-1"


def test_homes_that_are_made_up_push_no_true_one_out(tmp_path: Path) -> None:
    federation = trained(tmp_path)
    updates, mine = disk(federation, 1), federation.store.identity
    for number in range(40):
        keep(updates, number, home=f"{number:064x}")
    assert len([entry for entry in updates.all() if entry.home == mine]) == 2
    for number in range(60, 80):  # in rounds of two
        for value in (1, 2):
            with suppress(ConfigError):
                keep(updates, value, home=f"{number:064x}")
    assert len([entry for entry in updates.all() if entry.home == mine]) == 2
    assert len({entry.home for entry in updates.all()}) == 16
    with pytest.raises(ConfigError, match="of 16 federations already: give this one a folder"):
        keep(updates, 1, home=B)


def test_a_home_is_called_after_its_servers_key(federation: Federation) -> None:
    store: Store = federation.store
    assert store.identity == store.home.server_key().public_key.keyid
