"""What nobody may work out under SecAgg+, and sums that clients spoil.

Tests `flower/secagg/legacy_api.py` too.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server import SimpleClientManager
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from torch import nn

from harness.flower import secure, small
from harness.flower.journals import home
from harness.flower.secure import SecureFederation, changed, claim, one_line, stage_of, strategy
from harness.flower.small import OPTIONS, SIZES, initial
from secede import state as states
from secede.errors import ConfigError, RecordError, SilentError
from secede.flower import plan, secure_recording
from secede.flower.backend import FlowerBackend
from secede.flower.client.kept_updates import KeptUpdates
from secede.flower.rounds.grid import Transport
from secede.flower.secagg import legacy_api
from secede.flower.storage.round_log import OpenedSums

INNER = small.load_model
ALL = {f"site-{n}" for n in range(len(SIZES))}


@pytest.fixture
def federation(tmp_path: Path) -> SecureFederation:
    made = SecureFederation(tmp_path)
    made.secure.timeout = 0.2
    return made


def lost(federation: SecureFederation, name: str, *, times: int = 1) -> None:
    """Let a client's masked update get lost some times."""
    left = [times]

    def answer(message: Message, reply: Message) -> Message | None:
        if stage_of(reply) == Stage.COLLECT_MASKED_VECTORS and left[0]:
            left[0] -= 1
            return None
        return reply

    federation.site(name).answer = answer


def opened(federation: SecureFederation) -> list[tuple[str, set[str]]]:
    """Return the sums that were opened: where they start, and whose they are."""
    path = home(federation) / "opened.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(found["start"], {*found["clients"]}) for found in map(json.loads, lines)]


def in_last(federation: SecureFederation) -> set[str]:
    last = federation.store.last_round()
    assert last is not None
    return {each.client for each in last.clients}


# A mean of two


def test_after_a_mean_of_two_the_leaver_is_not_asked_for_a_step(
    federation: SecureFederation,
) -> None:
    federation.train(1)
    assert not federation.told.has("this mean is of two clients")
    for name in ("site-2", "site-3"):
        federation.site(name).online = False
    federation.train(1)
    assert federation.told.has("this mean is of two clients")
    for name in ("site-2", "site-3"):
        federation.site(name).online = True
    how: dict[str, Any] = {"leaver": "name:site-1", "secure": federation.secure}
    given = (federation.grid(), strategy(), federation.store)
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1")
    one_line(error, "and one other", "train a round with three clients", "leaver_gone=True")
    with pytest.raises(ConfigError, match="and one other"):
        plan(*given, **how)
    assert "train.unlearn" not in federation.site("site-1").seen
    ladder = plan(*given, leaver_gone=True, **how).ladder
    assert "local-step" not in {step.rung for step in ladder}
    federation.train(1)
    assert plan(*given, **how).ladder[0].rung == "local-step"


def test_a_sum_of_one_is_not_opened_whatever_the_threshold(federation: SecureFederation) -> None:
    federation.secure = SecAggPlusWorkflow(3, 0, timeout=0.2)
    for name in ("site-1", "site-2", "site-3"):
        lost(federation, name)
    federation.train(1)
    assert opened(federation) == []
    assert federation.store.last_round() is None


# Two sums from one model


def test_no_sum_is_opened_that_the_strategy_would_not_take(federation: SecureFederation) -> None:
    lost(federation, "site-3")
    federation.train(2, accept_failures=False)
    assert federation.told.has("accepts no failures: the sum stays closed")
    assert [who for _, who in opened(federation)] == [ALL]
    assert [len(r.clients) for r in federation.store.log.rounds()] == [len(SIZES)]


def test_a_round_that_led_nowhere_is_taken_again_with_the_same_clients(
    federation: SecureFederation,
) -> None:
    class Picky(FedAvg):
        def aggregate_fit(self, server_round: int, *given: Any) -> Any:
            return (None, {}) if server_round == 1 else super().aggregate_fit(server_round, *given)

    lost(federation, "site-3")
    context = federation.legacy(3)
    begin = legacy_api.to_parameters(initial())
    context.strategy = Picky(fraction_evaluate=0.0, initial_parameters=begin)
    workflow = DefaultWorkflow(fit_workflow=federation.secure)
    secure_recording(workflow, federation.store, online_timeout=0.3)(federation.grid(), context)
    assert federation.told.has("a sum from this model was opened before", "site-0, site-1, site-2")
    assert [len(sent) for _, sent in federation.sent] == [4, 3, 4]  # and then all again
    assert [who for _, who in opened(federation)] == [ALL - {"site-3"}, ALL]
    assert len({start for start, _ in opened(federation)}) == 2


@pytest.mark.parametrize("missing", [False, True])
def test_a_training_goes_on_with_those_whose_sum_was_opened(
    federation: SecureFederation, missing: bool
) -> None:
    lost(federation, "site-3")
    grid = federation.grid()

    def die(message: Message) -> None:
        if stage_of(message) == Stage.UNMASK:
            raise KeyboardInterrupt

    grid.before = die
    with pytest.raises(KeyboardInterrupt):
        federation.train(1, grid=grid)
    assert federation.store.last_round() is None
    federation.site("site-2").online = not missing
    if missing:
        with pytest.raises(SilentError) as error:
            federation.train(1)
        one_line(error, "without site-2", "all of them are online", "another model")
        assert len(federation.sent) == 1  # nobody trained
    else:
        federation.train(1, fraction_fit=0.5, min_fit_clients=2)  # whoever is drawn
        assert in_last(federation) == ALL - {"site-3"}


def test_the_quorum_is_asked_for_before_a_sum_is_opened(federation: SecureFederation) -> None:
    federation.train(2)
    before = opened(federation)
    lost(federation, "site-3")
    options = replace(OPTIONS, quorum=0.9, wait=timedelta(days=1))
    with pytest.raises(SilentError, match="2 of 3 retained clients take part"):
        federation.erase("name:site-1", options=options)
    assert federation.told.has("left out of the round", "'site-3'")
    assert opened(federation) == before
    assert federation.erase("name:site-1", options=options).state == "promoted"
    assert len({start for start, _ in opened(federation)}) == len(opened(federation))


def test_every_retraining_starts_elsewhere_and_the_same_one_does_not(
    federation: SecureFederation,
) -> None:
    federation.train(1)
    transport = Transport(grid=federation.grid(), pause=0.01)
    ground = FlowerBackend(
        transport,
        legacy_api.check_secagg(strategy(), federation.secure),
        federation.store,
        round_timeout=0.4,
    )
    model = federation.store.last_model()
    assert model is not None
    servers = [ground.server(name, [], model, 1.0) for name in ("site-1", "site-2", "site-1")]
    one, other, again = (states.digest(server.fresh_state()) for server in servers)
    assert one == again
    assert one != other


def test_in_an_erasure_too_a_start_has_one_set_of_clients(federation: SecureFederation) -> None:
    federation.train(1)
    store, model = federation.store, federation.store.last_model()
    assert model is not None
    federation.secure = SecAggPlusWorkflow(1.0, 0.5, max_weight=8000)
    transport = Transport(grid=federation.grid(), pause=0.01)
    ground = FlowerBackend(
        transport,
        legacy_api.check_secagg(strategy(), federation.secure),
        store,
        round_timeout=0.4,
        online_timeout=0.1,
    )
    engine = ground.engine
    how: dict[str, Any] = {"phase": "post-training", "number": 1}
    engine.train_round(model, [0, 2, 3], **how)
    assert federation.told.has("rounds this mean so coarsely")
    assert len(engine.train_round(model, [0, 1, 2, 3], **how).updates) == 3
    assert federation.told.has("'site-1'", "was opened without it")
    with pytest.raises(SilentError, match="without site-3 would reveal"):
        engine.train_round(model, [0, 1, 2], **how)
    assert all(set(sent) == {0, 2, 3} for _, sent in federation.sent[1:])


def test_a_line_that_a_kill_cut_off_was_never_opened(tmp_path: Path) -> None:
    log, start = OpenedSums(tmp_path), "a" * 64
    log.add(start, ["b", "a"])
    path = tmp_path / "opened.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    log.add("b" * 64, ["a", "c"])
    assert log.opened_with(start) == frozenset("ab")
    assert log.opened_with("b" * 64) == frozenset("ac")
    path.write_bytes(whole[:30] + b"\n")
    with pytest.raises(RecordError, match="damaged"):
        log.opened_with(start)


# Sums that clients spoil


def shares(change: Any) -> Any:
    def altered(reply: Message) -> None:
        found: Any = reply.content.config_records[RECORD_KEY_CONFIGS]
        found[Key.SHARE_LIST] = [change(share) for share in found[Key.SHARE_LIST]]

    return altered


@pytest.mark.parametrize(
    ("stage", "change", "words"),
    [
        (Stage.COLLECT_MASKED_VECTORS, claim(119), "does not fit the weights"),
        (Stage.COLLECT_MASKED_VECTORS, claim(3), "does not fit the weights"),
        (
            Stage.UNMASK,
            shares(lambda s: s[:5] + bytes([s[5] ^ 1]) + s[6:]),
            "false key shares",
        ),
        (Stage.UNMASK, shares(lambda s: s[:-1] + bytes([s[-1] ^ 1])), "false key shares"),
        (Stage.UNMASK, shares(lambda _: b""), "false key shares"),
    ],
)
def test_a_sum_that_does_not_add_up_is_not_recorded(
    federation: SecureFederation, stage: str, change: Any, words: str
) -> None:
    federation.site("site-2").answer = changed(stage, change)
    federation.train(1)
    assert federation.store.last_round() is None
    said = [
        line
        for line in federation.told
        if "round 1 is not recorded, the model stays as it is" in line
    ]
    assert len(said) == 1
    assert words in said[0]
    assert "\n" not in said[0]


class Scaled(nn.Module):
    """A network with numbers that are no arrays: a scale, and what BatchNorm counts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = INNER(), nn.BatchNorm1d(small.CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.inner(x)) * self.scale
        return found


def test_single_numbers_are_means_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = {name: value.clone() for name, value in Scaled().state_dict().items()}
    monkeypatch.setattr(secure, "initial", lambda: begin)
    for module in (secure, small):
        monkeypatch.setattr(module, "load_model", Scaled)
    federation = SecureFederation(tmp_path)
    federation.train(2)
    model = federation.store.last_model()
    assert model is not None
    sent = federation.sent[-1][1]
    for name, value in model.items():
        wanted = sum(sent[n][name].double() * size for n, size in enumerate(SIZES)) / sum(SIZES)
        away = float((value.double() - wanted).abs().max())
        assert away < 1e-4 if value.is_floating_point() else away <= 0.5, name


def test_a_weight_that_is_not_true_spoils_a_round_of_post_training(
    federation: SecureFederation,
) -> None:
    federation.train(2)
    federation.site("site-2").answer = changed(Stage.COLLECT_MASKED_VECTORS, claim(119))
    outcome = federation.erase("name:site-1")
    assert federation.told.has("did not complete", "does not fit the weights")
    assert outcome.state == "rolled-back"


def test_more_clients_than_the_modulus_has_room_for_are_refused(
    federation: SecureFederation,
) -> None:
    federation.secure = SecAggPlusWorkflow(
        1.0, 0.5, quantization_range=2**30, modulus_range=2**31, max_weight=120
    )
    with pytest.raises(ConfigError) as error:
        federation.train(1)
    one_line(error, "cannot sum up 4 clients", "modulus_range")
    assert federation.sent == []


# What a client tells of itself


def test_the_same_update_is_told_under_another_digest_each_time(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
    how: dict[str, Any] = {"run": "1", "number": 1, "samples": 3.0, "home": "a"}
    kept = [updates.put(initial(), hidden=True, **how) for _ in range(2)]
    plain = states.digest(initial())
    assert len({plain, *(each.digest for each in kept)}) == 3
    for each in kept:
        found = updates.get(str(each.digest), "a")
        assert found is not None
        assert states.digest(found) == plain
    assert updates.get(plain, "a") is None
    path = tmp_path / f"{kept[1].digest}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(RecordError, match="not those that were written"):
        updates.get(str(kept[1].digest), "a")


@pytest.mark.parametrize("radius", [1e-9, 1.0])
def test_a_step_that_ends_at_the_bare_reference_is_not_returned(
    federation: SecureFederation, radius: float
) -> None:
    federation.train(2)
    step = {**OPTIONS.settings["projected-ascent"], "radius": radius}
    options = replace(OPTIONS, settings={"projected-ascent": step})
    outcome = federation.erase("name:site-1", options=options)
    if radius == 1.0:
        assert (outcome.state, outcome.rung) == ("promoted", "local-step")
        return
    assert outcome.failures[0].outcome == "unable"
    assert federation.told.has("'site-1'", "would reveal this client's own update")
    size = states.size_bytes(federation.store.template)
    assert all(len(data) < size for kind, data in federation.seen if kind == "train.unlearn")


# Waits


def test_a_round_has_one_end_however_often_it_begins_again(federation: SecureFederation) -> None:
    federation.secure.timeout = None
    for site, stage in zip(federation.sites[:2], Stage.all()[:2], strict=True):
        site.answer = lambda _, reply, stage=stage: None if stage_of(reply) == stage else reply
    lost(federation, "site-2")
    context, started = federation.legacy(1), time.monotonic()
    workflow = DefaultWorkflow(fit_workflow=federation.secure)
    how: dict[str, Any] = {"online_timeout": 0.3, "round_timeout": 1.0}
    secure_recording(workflow, federation.store, **how)(federation.grid(), context)
    assert time.monotonic() - started < 2.5
    assert federation.store.last_round() is None


def test_a_client_manager_of_ones_own_is_refused(federation: SecureFederation) -> None:
    class Mine(SimpleClientManager):
        pass

    context = federation.legacy(1)
    context.client_manager = Mine()
    workflow = secure_recording(DefaultWorkflow(fit_workflow=federation.secure), federation.store)
    with pytest.raises(ConfigError) as error:
        workflow(federation.grid(), context)
    one_line(error, "'Mine' may wait for ever")
