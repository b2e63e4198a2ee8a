"""An erasure in Flower from the leaver's local step to the receipt."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import FedMedian

from harness.flower.journals import details, home, told, way
from harness.flower.small import (
    NOW,
    OPTIONS,
    SIZES,
    STEP,
    Federation,
    client_app,
    initial,
    simulator,
)
from secede import state as states
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.signing.keys import Keyring
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.progress import Progress
from secede.errors import ConfigError, GuardError
from secede.federation import engine as engines
from secede.flower import erase
from secede.flower.client.kept_updates import KeptUpdates
from secede.flower.storage import register
from secede.unlearning.client_tasks import LIVE
from secede.unlearning.registry import METHODS


def test_a_client_is_erased_and_a_receipt_says_so(federation: Federation) -> None:
    federation.train(3)
    before = federation.store.last_round()
    assert before is not None
    outcome = federation.erase("name:site-1")
    assert (outcome.state, outcome.client, outcome.method) == (
        "promoted",
        "site-1",
        "projected-ascent",
    )
    assert outcome.receipt is not None
    verify_receipt(outcome.receipt.read_bytes(), Keyring.load(home(federation) / "keys"))
    said = told(outcome.receipt)
    assert said["request"]["client"] == "site-1"
    assert said["models"] == {"before": before.model, "after": outcome.model}
    assert said["scope"]["rounds"] == 3
    assert said["scope"]["weight"] == pytest.approx(SIZES[1] / sum(SIZES))
    assert any("operator" in limit for limit in said["limits"])
    with Ledger(home(federation) / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
    assert federation.told.has("leaver name:site-1", "'site-1'")


def test_retained_clients_compare_each_sample_with_the_model_from_before(
    federation: Federation,
) -> None:
    federation.train(3)
    federation.erase("name:site-1")
    with Journal(home(federation) / "journal.sqlite", read_only=True) as journal:
        rounds = Progress.read(journal, journal.entry(1)).rounds
    for done in rounds:
        assert done.gate is not None
        counts = done.gate.counts
        assert counts.lost is not None
        assert counts.gained is not None
        assert sum(counts.lost) + sum(counts.gained) > 0
        assert done.gate.variance == 2.0 * 3  # three clients round


def test_the_leaver_gets_a_task_two_counts_a_goodbye_and_no_round(federation: Federation) -> None:
    federation.train(3)
    for site in federation.sites:
        site.seen.clear()
    federation.erase("name:site-1")
    counts = ["query.secede"] * 2  # with the models before and after
    assert federation.site("site-1").seen == ["train.unlearn", *counts, "query.leave"]
    for name in ("site-0", "site-2", "site-3"):
        assert "train" in federation.site(name).seen
        assert "train.unlearn" not in federation.site(name).seen


def test_a_round_of_an_erasure_hashes_each_update_once(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.train(2)
    hashed, real = Counter[str](), states.digest

    def counted(state: states.State) -> str:
        found = real(state)
        hashed[found] += 1
        return found

    monkeypatch.setattr(states, "digest", counted)
    monkeypatch.setattr(engines, "digest", counted)
    federation.erase("name:site-1")
    last = federation.store.last_round()
    assert last is not None
    assert [hashed[str(each.digest)] for each in last.clients] == [1, 1, 1]


def test_the_local_step_is_the_simulators_to_the_bit(federation: Federation) -> None:
    federation.train(2)
    model = federation.store.last_model()
    assert model is not None
    own = KeptUpdates(federation.folder / "disk-1" / "partition-1")
    last = own.newest(federation.store.identity)
    assert last is not None
    federation.erase("name:site-1")
    engine = simulator()
    from secede.federation.engine import OwnState
    from secede.unlearning.method import TakeStep
    from secede.unlearning.registry import create

    engine.own[1] = OwnState(last, SIZES[1] / sum(SIZES))
    method: Any = create("projected-ascent", STEP)[1]
    reply, _ = engine.ask(1, TakeStep(method), global_state=model)
    assert details(federation, "local-step")[0]["model"] == states.digest(reply.state)


def test_bytes_are_a_model_each_way_and_what_post_training_takes(federation: Federation) -> None:
    federation.train(2)
    grid, moved = federation.grid(), list[tuple[int, int]]()

    def count(message: Message) -> None:
        if message.metadata.message_type == "query.leave":  # after the receipt
            moved.append((grid.bytes_down, grid.bytes_up))

    grid.before = count
    outcome = federation.erase("name:site-1", grid=grid)
    assert outcome.receipt is not None
    costs = told(outcome.receipt)["costs"]
    assert [(costs["download_bytes"], costs["upload_bytes"])] == moved
    size = states.size_bytes(initial())
    (step,) = details(federation, "local-step")
    assert size <= step["exchange"]["cost"]["upload_bytes"] <= size + 2500


def test_training_and_erasing_may_be_months_apart(federation: Federation) -> None:
    federation.train(3)
    later = Federation(federation.folder, app=client_app())  # restarted: folders are all there is
    later.clock = lambda: NOW + timedelta(days=200)
    assert later.erase(f"key:{hashlib.sha256(b'public key 2').hexdigest()}").client == "site-2"
    assert later.store.last_round() is not None


def test_training_goes_on_without_the_erased_client(federation: Federation) -> None:
    federation.train(3)
    outcome = federation.erase("name:site-1")
    last = federation.store.last_round()
    assert last is not None
    assert (last.model, last.erased) == (outcome.model, "site-1")
    federation.site("site-1").seen.clear()
    federation.train(1)
    after = federation.store.last_round()
    assert after is not None
    assert after.start == outcome.model
    assert {c.client for c in after.clients} == {"site-0", "site-2", "site-3"}
    assert federation.site("site-1").seen == []


def test_a_retired_model_is_not_trained_from(federation: Federation) -> None:
    federation.train(3)
    old = federation.store.last_model()
    assert old is not None
    federation.erase("name:site-1")
    with pytest.raises(GuardError, match="which is retired"):
        federation.recording().start(federation.grid(), ArrayRecord(old), num_rounds=1)


def test_nothing_of_the_old_model_stays_at_the_server(federation: Federation) -> None:
    federation.train(3)
    outcome = federation.erase("name:site-1")
    left = [path.stem for path in (home(federation) / "models").iterdir()]
    assert left == [outcome.model]
    assert not list((home(federation) / "pending").glob("*"))
    assert not list((home(federation) / "work").rglob("*.safetensors"))


def test_a_second_client_leaves_with_its_share_of_post_training(federation: Federation) -> None:
    federation.train(3)
    federation.erase("name:site-1")
    last = federation.store.last_round()
    assert last is not None
    assert last.share("site-0") == pytest.approx(60 / (60 + 120 + 45))
    outcome = federation.erase("name:site-0")
    assert outcome.state == "promoted"
    assert outcome.rung == "local-step"
    (step,) = details(federation, "local-step", 2)
    assert step["report"]["own_weight"] == pytest.approx(last.share("site-0"))
    assert outcome.receipt is not None
    scope = told(outcome.receipt)["scope"]
    assert scope["last_round"] == last.number
    assert scope["rounds"] == last.number  # three of training, and all of post-training


def test_who_trains_again_after_an_erasure_has_those_rounds_in_its_scope(
    federation: Federation,
) -> None:
    federation.train(2)
    federation.erase("name:site-1")
    after = federation.store.last_round()
    assert after is not None
    federation.site("site-2").online = False
    federation.train(2)
    federation.site("site-2").online = True
    last = federation.store.last_round()
    assert last is not None
    assert last.number == after.number + 2
    scopes = {name: register.scope(federation.store, name) for name in ("site-0", "site-2")}
    assert (scopes["site-0"].rounds, scopes["site-0"].last_round) == (4, last.number)
    assert (scopes["site-2"].rounds, scopes["site-2"].last_round) == (2, 2)
    assert scopes["site-2"].weight == 0
    outcome = federation.erase("name:site-0")
    assert outcome.receipt is not None
    scope = told(outcome.receipt)["scope"]
    assert (scope["first_round"], scope["last_round"]) == (1, last.number)
    assert scope["rounds"] == last.number  # all of training, and all of post-training between
    assert scope["weight"] == pytest.approx(last.share("site-0"))


def test_a_leaver_that_missed_the_last_round_has_no_share_in_it(federation: Federation) -> None:
    federation.train(2)
    federation.site("site-1").online = False
    federation.train(1)
    federation.site("site-1").online = True
    federation.erase("name:site-1")
    (step,) = details(federation, "local-step")
    assert step["report"]["own_weight"] == 0  # so the reference is the model as it stands


def test_weights_are_of_those_really_aggregated_last(federation: Federation) -> None:
    federation.train(2)
    federation.site("site-2").vanishes = True  # in the last round three of four contribute
    federation.train(1)
    federation.site("site-2").vanishes = False
    federation.erase("name:site-1")
    (step,) = details(federation, "local-step")
    assert step["report"]["own_weight"] == pytest.approx(90 / (60 + 90 + 45))


def test_an_offline_leaver_is_erased_without_it(federation: Federation) -> None:
    federation.train(3)
    federation.site("site-1").online = False
    how = replace(OPTIONS, methods=(), settings={}, max_server_rounds=8)
    outcome = federation.erase("name:site-1", options=how)
    assert outcome.state == "promoted"
    assert outcome.rung in ("server-side", "retraining")
    assert "local-step" not in way(federation)


@pytest.mark.parametrize("fault", ["silent", "vanishes"])
def test_a_leaver_that_does_not_answer_leads_to_the_next_rung(
    federation: Federation, fault: str
) -> None:
    federation.train(3)
    setattr(federation.site("site-1"), fault, True)
    outcome = federation.erase("name:site-1", options=replace(OPTIONS, max_server_rounds=8))
    assert outcome.state == "promoted"
    assert outcome.rung != "local-step"
    assert outcome.failures[0].outcome == "silent"
    assert federation.told.has("waiting for site-1 until") or fault == "vanishes"


def test_a_leaver_killed_within_its_step_is_asked_again_when_it_is_back(
    federation: Federation,
) -> None:
    federation.train(3)
    leaver, tries = federation.site("site-1"), []
    grid = federation.grid()

    def once(message: Message) -> None:
        if message.metadata.message_type == "train.unlearn":
            tries.append(message)
            leaver.vanishes = len(tries) == 1

    grid.before = once
    how = replace(OPTIONS, leaver_timeout=5.0)
    outcome = federation.erase("name:site-1", grid=grid, options=how)
    assert (outcome.rung, len(tries)) == ("local-step", 2)
    assert federation.told.has("'site-1' went away", "Node Unavailable")


def test_a_leaver_that_lost_its_update_leads_to_the_next_rung(federation: Federation) -> None:
    federation.train(3)
    kept = KeptUpdates(federation.folder / "disk-1" / "partition-1")
    assert kept.forget(federation.store.identity) > 0
    outcome = federation.erase("name:site-1", options=replace(OPTIONS, max_server_rounds=8))
    assert outcome.failures[0].outcome == "unable"
    assert "client 'site-1'" in outcome.failures[0].reason


def test_late_clients_are_waited_for_and_dropped_ones_left_out(federation: Federation) -> None:
    federation.train(3)
    federation.site("site-0").late = 3
    federation.site("site-3").vanishes = True
    outcome = federation.erase("name:site-1")
    assert outcome.state == "promoted"
    assert federation.told.has("left out", "site-3")
    last = federation.store.last_round()
    assert last is not None
    assert {c.client for c in last.clients} == {"site-0", "site-2"}


def test_a_strategy_that_is_no_mean_is_refused(federation: Federation) -> None:
    federation.train(1)
    with pytest.raises(ConfigError, match="'FedMedian' cannot be erased from: it is a median"):
        erase(federation.grid(), FedMedian(), federation.store, leaver="name:site-1")


def test_a_method_that_cannot_be_sent_is_refused_before_anything_is_done(
    federation: Federation,
) -> None:
    federation.train(1)
    with pytest.raises(ConfigError, match="'negated-update'") as caught:
        federation.erase(options=replace(OPTIONS, methods=("negated-update",), settings={}))
    told = str(caught.value).partition("work live: ")[2].split(", ")
    assert told == [name for name in LIVE if METHODS[name].erases]


def test_without_a_completed_round_there_is_nothing_to_erase(federation: Federation) -> None:
    with pytest.raises(ConfigError, match="holds no completed round"):
        federation.erase()
