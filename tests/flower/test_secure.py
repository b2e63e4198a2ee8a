"""Erasing under SecAgg+: the server sees updates in sums alone; all else is as in the open."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from flwr.client.mod import LocalDpMod, message_size_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server.strategy import FedAdam
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp.strategy import FedAvg

from flower.journals import details, home, told, way
from flower.secure import (
    SecureFederation,
    changed,
    claim,
    one_line,
    put,
    readable,
    stage_of,
    strategy,
    train_here,
)
from flower.small import SIZES, WISHES, Federation, client_app, initial
from secede import state as states
from secede.erasure import receipt
from secede.erasure.keys import Keyring
from secede.erasure.ledger import Ledger
from secede.errors import ConfigError, GuardError, SilentError
from secede.flower import plan, recording, secure_recording
from secede.flower.secure import legacy
from secede.flower.updates import Updates

EXACT = 1e-4  # that the reference may be off: SecAgg+ counts in steps of 16 / 2**22
LEAVER = 1
OTHERS = tuple(n for n in range(len(SIZES)) if n != LEAVER)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@pytest.fixture
def federation(tmp_path: Path) -> SecureFederation:
    return SecureFederation(tmp_path)


def disk(federation: Federation, client: int) -> Updates:
    return Updates(federation.folder / f"disk-{client}" / f"partition-{client}")


def reference_error(federation: SecureFederation, client: int, others: tuple[int, ...]) -> float:
    """Return how far the leaver's reference is from the mean of what the others really sent."""
    last, model = federation.store.last(), federation.store.model()
    assert last is not None
    assert model is not None
    own = disk(federation, client).newest(federation.store.identity)
    assert own is not None
    sent = federation.sent[-1][1]
    wanted = states.mean([sent[n] for n in others], [SIZES[n] for n in others])
    found = states.reference(model, own, weight=last.share(f"site-{client}"))
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted)


# What is had


def test_a_client_is_erased_and_a_receipt_says_so(federation: SecureFederation) -> None:
    federation.train(2)
    before = federation.store.last()
    assert before is not None
    assert reference_error(federation, LEAVER, OTHERS) < EXACT
    outcome = federation.erase("name:site-1")
    assert (outcome.state, outcome.client) == ("promoted", "site-1")
    assert (outcome.rung, outcome.method) == ("local-step", "projected-ascent")
    assert way(federation)[:4] == ["received", "planned", "local-step", "guarded"]
    assert outcome.receipt is not None
    receipt.verify(outcome.receipt.read_bytes(), Keyring.load(home(federation) / "keys"))
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
    after = federation.store.last()
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
    model, last = federation.store.model(), federation.store.last()
    own = disk(federation, LEAVER).newest(federation.store.identity)
    assert model is not None
    assert last is not None
    assert own is not None
    reference = states.reference(model, own, weight=last.share("site-1"))
    settings = {"projected-ascent": {**WISHES.settings["projected-ascent"], "radius": 0.01}}
    federation.erase("name:site-1", wishes=replace(WISHES, settings=settings))
    with_ball = details(federation, "guarded")[0]
    assert with_ball["scalars"]["radius"] == 0.01
    sent = federation.sent[1][1]
    wanted = states.mean([sent[n] for n in OTHERS], [SIZES[n] for n in OTHERS])
    assert max(float((reference[n] - wanted[n]).abs().max()) for n in wanted) < EXACT
    # What the leaver returned lies in the ball around it: as far from the model as the reference.
    away = states.distance(model, reference)
    assert with_ball["scalars"]["distance_to_global"] == pytest.approx(away, abs=0.011)


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
    assert federation.told.has("stays out", "'site-1'", "it was erased")
    last = federation.store.last()
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
    wishes = replace(WISHES, methods=("weight-negation",), settings={}, server_rounds=4)
    outcome = federation.erase("name:site-1", gone=True, wishes=wishes)
    assert (outcome.state, outcome.rung) == ("promoted", "server-side")
    assert (outcome.client, outcome.method) == ("site-1", "weight-negation")
    assert federation.leaked() == set()


def test_a_site_that_allows_no_step_is_asked_in_vain(tmp_path: Path) -> None:
    federation = SecureFederation(tmp_path, methods=())
    federation.train(2)
    outcome = federation.erase("name:site-1")
    assert outcome.failures[0]["outcome"] == "unable"
    assert outcome.rung != "local-step"
    size = states.size_bytes(federation.store.like)
    assert all(len(data) < size for kind, data in federation.seen if kind == "train.unlearn")


def test_the_plan_says_what_is_hidden_and_asks_nobody(federation: SecureFederation) -> None:
    federation.train(1)
    before = [len(site.seen) for site in federation.sites]
    how: dict[str, Any] = {"leaver": "name:site-1", "secure": federation.secure}
    found = plan(federation.grid(), strategy(), federation.store, **how)
    assert not found.single_updates
    assert "Secure aggregation hides single updates" in found.text()
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
    receipt.verify(outcome.receipt.read_bytes(), Keyring.load(home(federation) / "keys"))
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


def test_who_drops_out_before_its_masked_update_came_is_not_in_the_mean(
    federation: SecureFederation,
) -> None:
    def lost(message: Message, reply: Message) -> Message | None:
        return None if stage_of(reply) == Stage.COLLECT_MASKED_VECTORS else reply

    federation.site("site-3").answer = lost
    federation.secure.timeout = 0.1
    federation.train(1)
    last = federation.store.last()
    assert last is not None
    assert {c.client for c in last.clients} == {"site-0", "site-1", "site-2"}
    assert federation.told.has("left out of the round", "'site-3'", "collect masked vectors")
    assert reference_error(federation, 1, (0, 2)) < EXACT


def test_who_drops_out_afterwards_is_in_the_mean(federation: SecureFederation) -> None:
    def lost(message: Message, reply: Message) -> Message | None:
        return None if stage_of(reply) == Stage.UNMASK else reply

    federation.site("site-3").answer = lost
    federation.secure.timeout = 0.1
    federation.train(1)
    last = federation.store.last()
    assert last is not None
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
    after = federation.store.last()
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
    assert federation.store.last() is None
    assert federation.told.has("round 1: secure aggregation came to no end, all stays")


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
    last = federation.store.last()
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
    last = federation.store.last()
    assert last is not None
    assert len(last.clients) == len(SIZES)


def test_a_weight_far_beyond_what_was_recorded_is_left_out_of_post_training(
    federation: SecureFederation,
) -> None:
    federation.train(2)
    federation.site("site-3").answer = changed(Stage.COLLECT_MASKED_VECTORS, claim(900))
    assert federation.erase("name:site-1").state == "promoted"
    assert federation.told.has("'site-3'", "far beyond what was recorded")


def test_an_update_that_the_sum_would_cut_off_is_not_sent(federation: SecureFederation) -> None:
    federation.secure = SecAggPlusWorkflow(1.0, 0.5, clipping_range=0.001)
    with pytest.raises(GuardError, match=r"cuts off what is above .* larger clipping_range"):
        federation.train(1)
    assert federation.store.last() is None


def test_a_mean_in_coarse_steps_is_said(federation: SecureFederation) -> None:
    # One step is less than 1e-4, and what four clients' rounding makes of a reference is more.
    federation.secure = SecAggPlusWorkflow(1.0, 0.5, max_weight=8000)
    assert legacy.step_size(federation.secure, sum(SIZES)) < legacy.COARSE
    federation.train(2)
    said = [line for line in federation.told if "counts this mean in steps so coarse" in line]
    assert len(said) == 1
    assert "lower its max_weight" in said[0]


# The order of mods


def around(message: Message, context: Context, call_next: Any) -> Message:
    return secaggplus_mod(message, context, call_next)


def test_with_secaggs_mod_inside_of_ours_nobody_trains(tmp_path: Path) -> None:
    federation = SecureFederation(tmp_path, hide=(), inside=(around,))
    with pytest.raises(GuardError, match=r"secaggplus_mod must come before erasure\.mod"):
        federation.train(1)
    assert not disk(federation, 0).all()


def test_updates_are_kept_outside_of_the_noise_and_inside_secagg(tmp_path: Path) -> None:
    noise = LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=1.0, delta=1e-2)
    federation = SecureFederation(tmp_path, inside=[noise])
    federation.train(2)
    error = reference_error(federation, LEAVER, OTHERS)
    assert error < EXACT


@pytest.mark.parametrize("by_function", [False, True])
@pytest.mark.parametrize(
    "mods",
    [
        {"around": [message_size_mod]},
        {"hide": (), "inside": [secaggplus_mod]},
        {"hide": (), "around": [message_size_mod], "inside": [secaggplus_mod]},
    ],
    ids=["between", "inside", "apart"],
)
def test_a_mod_that_does_not_follow_secaggs_is_refused_at_once(
    tmp_path: Path, mods: Any, by_function: bool
) -> None:
    with pytest.raises(ConfigError) as error:
        SecureFederation(tmp_path, by_function=by_function, **mods)
    one_line(error, "erasure.mod must directly follow secaggplus_mod", "mods=[")


def test_who_keeps_no_update_is_named_in_the_first_round(federation: SecureFederation) -> None:
    app = ClientApp(mods=[secaggplus_mod])
    app.train()(train_here)
    federation.app = app
    federation.train(2)
    for name in ("site-0", "site-3"):
        said = [line for line in federation.told if f"{name!r} says of no update" in line]
        assert len(said) == 1


# What is refused, in one line


def test_a_model_that_was_trained_under_secagg_is_not_erased_from_in_the_open(
    federation: SecureFederation,
) -> None:
    federation.train(2)
    before = [len(site.seen) for site in federation.sites]
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1", secure=None, strategy=FedAvg())
    one_line(error, "trained under secure aggregation", "secure=")
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1", secure=None)
    one_line(error, "legacy stack", "secure=")
    assert [len(site.seen) for site in federation.sites] == before


def test_a_model_that_was_trained_in_the_open_is_not_erased_from_under_secagg(
    tmp_path: Path,
) -> None:
    federation = Federation(tmp_path)
    federation.train(2)
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1", secure=SecAggPlusWorkflow(3, 2))
    one_line(error, "'FedAvg' of flwr.serverapp", "flwr.server.strategy")
    with pytest.raises(ConfigError) as error:
        plan(
            federation.grid(),
            strategy(),
            federation.store,
            leaver="name:site-1",
            secure=SecAggPlusWorkflow(3, 2),
        )
    one_line(error, "trained in the open", "leave out secure=")


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (replace(WISHES, mean="median"), ("mean 'median' needs single updates",)),
        (replace(WISHES, methods=("reference",), settings={}), ("reference", "single updates")),
    ],
)
def test_what_needs_single_updates_is_refused(
    federation: SecureFederation, wishes: Any, words: tuple[str, ...]
) -> None:
    federation.train(1)
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1", wishes=wishes)
    one_line(error, *words)


@pytest.mark.parametrize(
    ("strategy_of", "secure", "words"),
    [
        (FedAvg, SecAggPlusWorkflow(3, 2), ("'FedAvg' of flwr.serverapp", "LegacyContext")),
        (strategy, DefaultWorkflow(), ("'DefaultWorkflow'", "SecAggPlusWorkflow")),
        (
            lambda: FedAdam(initial_parameters=legacy.to_parameters({})),
            SecAggPlusWorkflow(3, 2),
            ("'FedAdam'", "its server optimiser has a memory"),
        ),
        (strategy, SecAggPlusWorkflow(5, 4), ("SecAgg+ needs 4 of 3 shares", "3 clients are left")),
    ],
)
def test_workflows_and_strategies_that_do_not_fit_are_refused(
    federation: SecureFederation, strategy_of: Any, secure: Any, words: tuple[str, ...]
) -> None:
    federation.train(1)
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1", strategy=strategy_of(), secure=secure)
    one_line(error, *words)


@pytest.mark.parametrize(
    ("shares", "threshold", "clients", "enough"),
    [
        (1.0, 0.5, 2, True),
        (1.0, 1.0, 5, True),
        (0.6, 0.5, 5, True),
        (3, 2, 4, True),
        (5, 3, 3, True),
        (5, 4, 3, False),
        (5, 1.0, 4, False),
    ],
)
def test_whether_so_many_can_end_a_round_is_known_before(
    federation: SecureFederation, shares: float, threshold: float, clients: int, enough: bool
) -> None:
    federation.secure = SecAggPlusWorkflow(shares, threshold)
    masked = legacy.check(strategy(), federation.secure)
    if enough:
        masked.check_enough(clients)
    else:
        with pytest.raises(ConfigError, match="smaller reconstruction_threshold"):
            masked.check_enough(clients)
    if clients <= len(SIZES):  # and so it is
        for site in federation.sites[clients:]:
            site.online = False
        federation.train(1)
        assert (federation.store.last() is not None) == enough


def test_one_client_alone_would_be_left_and_cannot_hide(federation: SecureFederation) -> None:
    for name in ("site-2", "site-3"):
        federation.site(name).online = False
    federation.train(1)
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1")
    one_line(error, "one client alone cannot hide its update")


@pytest.mark.parametrize(
    "workflow", [DefaultWorkflow(), SecAggPlusWorkflow(3, 2)], ids=["open", "bare"]
)
def test_a_workflow_that_does_not_hide_is_not_recorded_securely(
    federation: SecureFederation, workflow: Any
) -> None:
    with pytest.raises(ConfigError) as error:
        secure_recording(workflow, federation.store)
    one_line(error, "does not hide updates", "fit_workflow=SecAggPlusWorkflow")


def test_a_legacy_strategy_is_not_recorded_in_the_open(federation: SecureFederation) -> None:
    with pytest.raises(ConfigError) as error:
        recording(strategy(), federation.store)  # type: ignore[arg-type]
    one_line(error, "legacy stack", "secure_recording")


def test_a_strategy_that_changes_the_mean_is_found_out(federation: SecureFederation) -> None:
    class Half(LegacyFedAvg):
        def aggregate_fit(self, *given: Any) -> Any:
            found, metrics = super().aggregate_fit(*given)
            assert found is not None
            state = legacy.to_state(found, federation.store.like)
            return legacy.to_parameters({n: v / 2 for n, v in state.items()}), metrics

    context = federation.legacy(1)
    begin = legacy.to_parameters(initial())
    context.strategy = Half(fraction_evaluate=0.0, initial_parameters=begin)
    workflow = secure_recording(DefaultWorkflow(fit_workflow=federation.secure), federation.store)
    with pytest.raises(ConfigError, match="'Half' changes the weighted mean"):
        workflow(federation.grid(), context)
    assert federation.store.last() is None


def test_a_strategy_without_initial_parameters_is_refused(federation: SecureFederation) -> None:
    with pytest.raises(ConfigError) as error:
        federation.train(1, initial_parameters=None)
    one_line(error, "no initial_parameters")


def test_too_few_clients_are_waited_for_and_not_for_ever(federation: SecureFederation) -> None:
    with pytest.raises(SilentError, match=r"too few clients came within 0\.3 seconds"):
        federation.train(1, min_available_clients=9)


def test_recording_clients_that_hide_their_updates_is_refused_and_they_send_none(
    tmp_path: Path,
) -> None:
    federation = Federation(tmp_path, app=client_app([secaggplus_mod]))
    grid = federation.grid()
    with pytest.raises(ConfigError, match=r"hide their updates .* secure_recording"):
        federation.train(1, grid=grid)
    assert grid.bytes_up == 0
    assert federation.store.last() is None
