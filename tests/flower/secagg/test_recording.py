"""Erasing under SecAgg+: the server sees updates in sums alone; all else is as in the open."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.client.mod import secaggplus_mod
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from harness.flower.journals import details, home, told, way
from harness.flower.secure import (
    EXACT,
    LEAVER,
    OTHERS,
    SecureFederation,
    disk,
    readable,
    reference_error,
    strategy,
)
from harness.flower.small import OPTIONS, SIZES
from secede import state as states
from secede.erasure.planning.plan_table import plan_text
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.signing.keys import Keyring
from secede.erasure.storage.ledger import Ledger
from secede.flower import plan


def test_a_client_is_erased_and_a_receipt_says_so(federation: SecureFederation) -> None:
    federation.train(2)
    before = federation.store.last_round()
    assert before is not None
    assert reference_error(federation, LEAVER, OTHERS) < EXACT
    outcome = federation.erase("name:site-1")
    assert (outcome.state, outcome.client) == ("promoted", "site-1")
    assert (outcome.rung, outcome.method) == ("local-step", "projected-ascent")
    assert way(federation)[:4] == ["received", "planned", "local-step", "guarded"]
    assert outcome.receipt is not None
    verify_receipt(outcome.receipt.read_bytes(), Keyring.load(home(federation) / "keys"))
    said = told(outcome.receipt)
    assert said["models"] == {"before": before.model, "after": outcome.model}
    assert said["scope"]["rounds"] == 2
    assert said["scope"]["weight"] == pytest.approx(SIZES[1] / sum(SIZES))
    assert said["method"]["settings"]["single_updates"] is False
    assert said["method"]["guard"]["centre"] == "global"
    environments = [each["environment"] for each in said["software"]]
    assert all(each["secure-aggregation"] == "SecAgg+" for each in environments)
    limits = " ".join(said["limits"])
    assert "Secure aggregation hid the retained clients' updates" in limits
    assert "came to the server in the open, once" in limits
    with Ledger(home(federation) / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
    assert federation.told.has("Secure aggregation hides single updates")  # the plan
    after = federation.store.last_round()
    assert after is not None
    assert (after.model, after.erased, after.secure) == (outcome.model, "site-1", True)


def test_rounds_are_recorded_with_weights_and_digests_and_without_updates(
    federation: SecureFederation,
) -> None:
    federation.train(2)
    rounds = federation.store.log.rounds()
    assert [(r.number, r.server_round, r.secure) for r in rounds] == [
        (1, 1, True),
        (2, 2, True),
    ]
    for each, (_, sent) in zip(rounds, federation.sent, strict=True):
        weights = {c.client: c.weight for c in each.clients}
        assert weights == {f"site-{n}": size for n, size in enumerate(SIZES)}
        guesses = {states.digest(state) for state in sent.values()}
        assert not guesses & {c.digest for c in each.clients}  # nobody can tell that one is right
        assert all(c.distance is None for c in each.clients)
    for n in range(len(SIZES)):
        kept = disk(federation, n).all()[0]
        assert (kept.digest, kept.round, kept.samples) == (
            rounds[-1].clients[n].digest,
            2,
            SIZES[n],
        )
    files = [path.read_bytes() for path in home(federation).rglob("*") if path.is_file()]
    assert readable(files, federation.pieces[-1]) == set()


def test_no_update_of_anybody_can_be_read_in_what_reaches_the_server(
    federation: SecureFederation, tmp_path: Path
) -> None:
    federation.train(2)
    federation.erase("name:site-1")
    groups = [group for group, _ in federation.sent]
    assert groups[:2] == ["1", "2"]
    assert groups[2:]
    assert all(group.startswith("secede/") for group in groups[2:])
    assert federation.seen
    for group, sent in federation.sent:
        assert set(sent) == ({*range(len(SIZES))} if group in "12" else {*OTHERS})
    assert federation.leaked() == set()
    # The leaver's one state is what it returned, once; the others answer in the protocol alone.
    openly = [kind for kind, _ in federation.seen if kind.startswith("train.")]
    assert openly == ["train.unlearn"]
    plain = SecureFederation(tmp_path / "open", hide=())
    DefaultWorkflow()(plain.grid(), plain.legacy(1))  # the same search finds all of them here
    assert plain.leaked() == {*range(len(SIZES))}


def test_numbers_that_nobody_masked_are_found_in_what_reaches_the_server(
    federation: SecureFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def zeros(_: bytes, __: int, shapes: list[tuple[int, ...]]) -> list[Any]:
        return [np.zeros(shape, dtype=np.int64) for shape in shapes]

    monkeypatch.setattr(sys.modules[secaggplus_mod.__module__], "pseudo_rand_gen", zeros)
    federation.train(1)
    assert federation.leaked() == {*range(len(SIZES))}


def test_the_local_step_starts_at_an_exact_reference(federation: SecureFederation) -> None:
    federation.train(2)
    model, last = federation.store.last_model(), federation.store.last_round()
    own = disk(federation, LEAVER).newest(federation.store.identity)
    assert model is not None
    assert last is not None
    assert own is not None
    reference = states.reference(model, own, weight=last.share("site-1"))
    settings = {"projected-ascent": {**OPTIONS.settings["projected-ascent"], "radius": 0.01}}
    federation.erase("name:site-1", options=replace(OPTIONS, settings=settings))
    with_ball = details(federation, "guarded")[0]
    assert with_ball["report"]["radius"] == 0.01
    sent = federation.sent[1][1]
    wanted = states.mean([sent[n] for n in OTHERS], [SIZES[n] for n in OTHERS])
    assert max(float((reference[n] - wanted[n]).abs().max()) for n in wanted) < EXACT
    # What the leaver returned lies in the ball around it, but for the client's noise: by array and
    # by unit half of how far it is from the model.
    away = math.hypot(1, 0.5, 0.5) * states.distance(model, reference)
    assert with_ball["report"]["distance_to_global"] == pytest.approx(away, rel=0.2)


def test_training_goes_on_without_the_erased_client_and_the_next_can_leave(
    federation: SecureFederation,
) -> None:
    federation.train(2)
    federation.erase("name:site-1")
    left = tuple(n for n in OTHERS if n != 2)
    assert reference_error(federation, 2, left) < EXACT  # from a round of post-training
    federation.site("site-1").seen.clear()
    federation.train(1)
    assert federation.site("site-1").seen == []
    assert federation.told.has("not admitted", "'site-1'", "it was erased")
    last = federation.store.last_round()
    assert last is not None
    assert {c.client for c in last.clients} == {"site-0", "site-2", "site-3"}
    assert reference_error(federation, 2, left) < EXACT
    outcome = federation.erase("name:site-2")
    assert (outcome.state, outcome.client) == ("promoted", "site-2")


def test_an_app_that_is_made_of_a_function_works_as_well(tmp_path: Path) -> None:
    federation = SecureFederation(tmp_path, by_function=True)
    federation.train(2)
    assert reference_error(federation, LEAVER, OTHERS) < EXACT
    outcome = federation.erase("name:site-1")
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    assert disk(federation, LEAVER).all() == ()  # it was told to delete them


def test_a_client_that_is_gone_is_erased_by_the_server_under_secagg(
    federation: SecureFederation,
) -> None:
    federation.train(2)
    federation.site("site-1").online = False
    options = replace(OPTIONS, methods=("weight-negation",), settings={}, max_server_rounds=4)
    outcome = federation.erase("name:site-1", leaver_gone=True, options=options)
    assert (outcome.state, outcome.rung) == ("promoted", "server-side")
    assert (outcome.client, outcome.method) == ("site-1", "weight-negation")
    assert federation.leaked() == set()


def test_a_site_that_allows_no_step_is_asked_in_vain(tmp_path: Path) -> None:
    federation = SecureFederation(tmp_path, methods=())
    federation.train(2)
    outcome = federation.erase("name:site-1")
    assert outcome.failures[0].outcome == "unable"
    assert outcome.rung != "local-step"
    size = states.size_bytes(federation.store.template)
    assert all(len(data) < size for kind, data in federation.seen if kind == "train.unlearn")


def test_the_plan_says_what_is_hidden_and_asks_nobody(federation: SecureFederation) -> None:
    federation.train(1)
    before = [len(site.seen) for site in federation.sites]
    how: dict[str, Any] = {"leaver": "name:site-1", "secure": federation.secure}
    found = plan(federation.grid(), strategy(), federation.store, **how)
    assert not found.single_updates
    assert "Secure aggregation hides single updates" in plan_text(found)
    assert [step.method for step in found.ladder] == ["second-choice", "weight-negation", "retrain"]
    assert [len(site.seen) for site in federation.sites] == before
    federation.secure = SecAggPlusWorkflow(3, 2)  # other settings than in training will do
    assert federation.erase("name:site-1").state == "promoted"


def test_costs_are_the_bytes_of_all_four_messages(federation: SecureFederation) -> None:
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


# After a kill, and who drops out
