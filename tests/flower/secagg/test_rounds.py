"""Rounds under SecAgg+ that are cut short, that clients drop out of, or that they spoil.

Tests `flower/secagg/engine.py` too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server.workflow import SecAggPlusWorkflow

from harness.flower.journals import details, home, way
from harness.flower.secure import (
    EXACT,
    LEAVER,
    OTHERS,
    SecureFederation,
    changed,
    claim,
    put,
    reference_error,
    stage_of,
)
from harness.flower.small import SIZES
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.signing.keys import Keyring
from secede.erasure.storage.ledger import Ledger
from secede.errors import ConfigError, GuardError
from secede.flower.secagg import legacy_api
from secede.flower.storage.round_log import Round


@pytest.mark.parametrize("stage", Stage.all())
def test_an_erasure_that_is_cut_short_within_a_round_goes_on(
    federation: SecureFederation, stage: str
) -> None:
    federation.train(2)
    grid, rounds = federation.grid(), list[str]()

    def die(message: Message) -> None:
        if stage_of(message) == stage:
            rounds.append(message.metadata.group_id)
            if len({*rounds}) == 2 and rounds.count(rounds[-1]) == 2:  # its second client
                raise KeyboardInterrupt

    grid.before = die
    with pytest.raises(KeyboardInterrupt):
        federation.erase("name:site-1", grid=grid)
    done = len(details(federation, "post-training"))
    assert done == 2  # none, and the first
    federation.site("site-1").seen.clear()
    outcome = federation.erase("name:site-1")
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    assert "train.unlearn" not in federation.site("site-1").seen  # its step was kept
    states_of_it = way(federation)
    assert states_of_it.count("local-step") == 1
    assert len(details(federation, "post-training")) > done
    assert outcome.receipt is not None
    verify_receipt(outcome.receipt.read_bytes(), Keyring.load(home(federation) / "keys"))
    with Ledger(home(federation) / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
    assert federation.leaked() == set()


def test_a_training_that_is_cut_short_goes_on_after_its_last_round(
    federation: SecureFederation,
) -> None:
    grid = federation.grid()

    def die(message: Message) -> None:
        if message.metadata.group_id == "2" and stage_of(message) == Stage.UNMASK:
            raise KeyboardInterrupt

    grid.before = die
    with pytest.raises(KeyboardInterrupt):
        federation.train(3, grid=grid)
    assert [r.server_round for r in federation.store.log.rounds()] == [1]
    with pytest.raises(ConfigError, match="cut short"):
        federation.erase("name:site-1")
    federation.train(3)
    assert [r.server_round for r in federation.store.log.rounds()] == [1, 2, 3]
    assert [group for group, _ in federation.sent] == ["1", "2", "2", "3"]
    rounds = federation.store.log.rounds()
    assert [r.start for r in rounds[1:]] == [r.model for r in rounds[:-1]]
    assert federation.erase("name:site-1").state == "promoted"


def drop_out(federation: SecureFederation, stage: str) -> Round:
    """Train a round that site-3 leaves at a stage; return it."""

    def lost(message: Message, reply: Message) -> Message | None:
        return None if stage_of(reply) == stage else reply

    federation.site("site-3").answer = lost
    federation.secure.timeout = 0.1
    federation.train(1)
    last = federation.store.last_round()
    assert last is not None
    return last


def test_who_drops_out_before_its_masked_update_came_is_not_in_the_mean(
    federation: SecureFederation,
) -> None:
    last = drop_out(federation, Stage.COLLECT_MASKED_VECTORS)
    assert {c.client for c in last.clients} == {"site-0", "site-1", "site-2"}
    assert federation.told.has("left out of the round", "'site-3'", "collect masked vectors")
    assert reference_error(federation, 1, (0, 2)) < EXACT


def test_who_drops_out_afterwards_is_in_the_mean(federation: SecureFederation) -> None:
    last = drop_out(federation, Stage.UNMASK)
    assert len(last.clients) == len(SIZES)
    assert not federation.told.has("left out of the round")
    assert reference_error(federation, LEAVER, OTHERS) < EXACT


def test_a_silent_retained_client_is_left_out_of_post_training(
    federation: SecureFederation,
) -> None:
    federation.train(2)
    federation.site("site-3").silent = True
    outcome = federation.erase("name:site-1")
    assert outcome.state == "promoted"
    after = federation.store.last_round()
    assert after is not None
    assert {c.client for c in after.clients} == {"site-0", "site-2"}


@pytest.mark.parametrize("silent", [3, 4])
def test_a_round_that_comes_to_no_end_leaves_all_as_it_was(
    federation: SecureFederation, silent: int
) -> None:
    for site in federation.sites[:silent]:
        site.silent = True
    federation.secure.timeout = 0.05
    federation.train(1)
    assert federation.store.last_round() is None
    assert federation.told.has(
        "round 1: secure aggregation did not complete, the model stays as it is"
    )


# What clients send is looked at


def same_keys(reply: Message) -> None:
    found = reply.content.config_records[RECORD_KEY_CONFIGS]
    found[Key.PUBLIC_KEY_1] = found[Key.PUBLIC_KEY_2]


def openly(reply: Message) -> None:
    reply.content["more"] = ArrayRecord([np.ones(3)])


@pytest.mark.parametrize(
    ("stage", "change", "words"),
    [
        (Stage.SETUP, put(Key.PUBLIC_KEY_1, "no key"), "no 'pk1'"),
        (Stage.SETUP, put(Key.PUBLIC_KEY_1, b"no key"), "cannot be read"),
        (Stage.SETUP, same_keys, "not two of its own"),
        (Stage.SHARE_KEYS, put(Key.DESTINATION_LIST, [1]), "differ in length"),
        (Stage.SHARE_KEYS, put(Key.CIPHERTEXT_LIST, 5), "no 'ctxts'"),
        (Stage.COLLECT_MASKED_VECTORS, put(Key.MASKED_PARAMETERS, [b"x"]), "1 masked arrays"),
        (Stage.COLLECT_MASKED_VECTORS, put(Key.MASKED_PARAMETERS, [b"x"] * 5), "cannot be read"),
        (
            Stage.COLLECT_MASKED_VECTORS,
            put(Key.MASKED_PARAMETERS, [b"x" * 20_000] * 5),
            "too many",
        ),
        (Stage.COLLECT_MASKED_VECTORS, claim(0), "no whole number above 0"),
        (Stage.COLLECT_MASKED_VECTORS, claim(5000), "max_weight of 5,000 or more"),
        (Stage.COLLECT_MASKED_VECTORS, openly, "in the open beside"),
    ],
)
def test_a_reply_that_cannot_be_used_is_left_out_and_its_client_named(
    federation: SecureFederation, stage: str, change: Any, words: str
) -> None:
    federation.site("site-2").answer = changed(stage, change)
    federation.train(1)
    last = federation.store.last_round()
    assert last is not None
    assert {c.client for c in last.clients} == {"site-0", "site-1", "site-3"}
    assert federation.told.has("left out of the round: client 'site-2'", words)
    assert reference_error(federation, 1, (0, 3)) < EXACT


def test_shares_of_strangers_are_left_out_and_the_mean_is_had_all_the_same(
    federation: SecureFederation,
) -> None:
    federation.site("site-2").answer = changed(
        Stage.UNMASK, lambda reply: put(Key.NODE_ID_LIST, [5, 6, 7, 8])(reply)
    )
    federation.train(1)
    last = federation.store.last_round()
    assert last is not None
    assert len(last.clients) == len(SIZES)


def test_a_weight_far_beyond_what_was_recorded_is_left_out_of_post_training(
    federation: SecureFederation,
) -> None:
    federation.train(2)
    federation.site("site-3").answer = changed(Stage.COLLECT_MASKED_VECTORS, claim(900))
    assert federation.erase("name:site-1").state == "promoted"
    assert federation.told.has("'site-3'", "far above its recorded weight")


def test_an_update_that_the_sum_would_cut_off_is_not_sent(federation: SecureFederation) -> None:
    federation.secure = SecAggPlusWorkflow(1.0, 0.5, clipping_range=0.001)
    with pytest.raises(GuardError, match=r"clips values above .* larger clipping_range"):
        federation.train(1)
    assert federation.store.last_round() is None


def test_a_mean_in_coarse_steps_is_said(federation: SecureFederation) -> None:
    # One step is less than 1e-4, and what four clients' rounding makes of a reference is more.
    federation.secure = SecAggPlusWorkflow(1.0, 0.5, max_weight=8000)
    assert legacy_api.step_size(federation.secure, sum(SIZES)) < legacy_api.COARSE
    federation.train(2)
    said = [line for line in federation.told if "rounds this mean so coarsely" in line]
    assert len(said) == 1
    assert "lower its max_weight" in said[0]


# The order of mods
