"""An erasure in a job of NVFlare, clients and server in one process.

Tests `nvflare/client.py` and `nvflare/controller.py` too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from torch import nn

from harness.flower.small import CLASSES, SIZES, Federation, initial
from harness.nvflare.inprocess import Job
from harness.nvflare.small import MODEL, OPTIONS, erasing, said
from secede.erasure.defences import unused_weights
from secede.errors import ConfigError, SecedeError, SilentError
from secede.flower import backend
from secede.flower.client.consent import Release, release
from secede.flower.client.kept_updates import KeptUpdates
from secede.flower.client.question_log import QuestionLog
from secede.nvflare import flmodels
from secede.nvflare.controller import FederationController


def test_a_client_is_erased_and_the_receipt_names_nvflare(job: Job) -> None:
    job.run(rounds=3)
    job.erase("name:site-1")
    found = said(job.folder / "home")
    assert found["request"]["client"] == "site-1"
    assert found["scope"]["rounds"] == 3
    assert found["scope"]["weight"] == pytest.approx(SIZES[1] / sum(SIZES))
    (software,) = found["software"]
    assert software["environment"]["engine"] == "nvflare"
    assert {"nvflare", "flwr", "torch"} <= set(software["versions"])
    assert job.told.has("leaver name:site-1", "'site-1'")


def counting_steps(model: FLModel) -> FLModel:
    """Send what NVFlare's examples do: the steps of a round, batches of 16, as its weight."""
    if flmodels.WEIGHT in (model.meta or {}):
        model.meta[flmodels.WEIGHT] = -(-model.meta[flmodels.WEIGHT] // 16)
    return model


def test_weights_that_count_steps_are_said_once_in_the_first_round(job: Job) -> None:
    for site in job.sites.values():
        site.change = counting_steps
    job.run(rounds=3)
    last = job.store.last_round()
    assert last is not None
    assert [c.weight for c in last.clients] == [4, 6, 8, 3]
    said_so = [line for line in job.told if "does not count samples" in line]
    assert len(said_so) == 1
    assert f"{flmodels.WEIGHT!r} does not count samples at site-0" in said_so[0]
    assert "client 'site-0' reports 4 and has 60" in said_so[0]
    job.run(rounds=1)  # another training: it may be another script
    assert sum("does not count samples" in line for line in job.told) <= 2


def test_weights_that_count_samples_are_not_remarked_on(job: Job) -> None:
    job.run(rounds=2)
    assert not job.told.has("does not count samples")


@pytest.mark.parametrize("count", ["60", -1, True, 2**60])
def test_a_count_that_is_none_is_not_compared(job: Job, count: object) -> None:
    def lying(model: FLModel) -> FLModel:
        model.meta = {name: count if "samples" in name else v for name, v in model.meta.items()}
        return model

    job.site("site-1").change = lying
    job.run(rounds=1)
    assert not job.told.has("does not count samples")
    last = job.store.last_round()
    assert last is not None
    assert len(last.clients) == len(SIZES)


def test_the_leaver_gets_questions_and_no_round(job: Job) -> None:
    job.run(rounds=2)
    for site in job.sites.values():
        site.seen.clear()
    job.erase("name:site-1")
    assert set(job.site("site-1").seen) == {"secede"}
    assert {"train", "secede"} == set(job.site("site-0").seen)
    job.site("site-1").seen.clear()
    job.run(rounds=1)  # nor is it in any later training
    assert job.site("site-1").seen == []


def test_a_site_takes_no_step_that_its_owner_does_not_know_of(job: Job) -> None:
    job.consent = False
    job.run(rounds=2)
    job.erase("name:site-1")
    assert said(job.folder / "home")["method"]["rung"] == "server-side"
    asked = QuestionLog(job.folder / "disks" / "site-1").all()
    assert [(each.task, each.outcome) for each in asked] == [
        ("local-step", "refused"),
        *[("count-right", "taken")] * 2,  # with the models before and after
        ("leave", "taken"),
    ]
    assert "neither signed nor released request" in asked[0].reason
    assert KeptUpdates(job.folder / "disks" / "site-1").all() == ()  # for the receipt


def test_a_site_released_by_its_owner_takes_it(job: Job) -> None:
    job.consent = False
    job.run(rounds=2)
    release(job.folder / "disks" / "site-1", Release(federation=job.store.name))
    job.erase("name:site-1")
    assert said(job.folder / "home")["method"]["rung"] == "local-step"


def test_it_ends_at_flowers_digest(job: Job, tmp_path: Path) -> None:
    federation = Federation(tmp_path / "flower")
    federation.recording().start(federation.grid(), ArrayRecord(initial()), num_rounds=3, timeout=5)
    job.run(rounds=3)
    mine, other = job.store.last_round(), federation.store.last_round()
    assert mine is not None
    assert other is not None
    assert mine.model == other.model
    job.erase("name:site-1")
    assert job.store.serving_digest() == federation.erase("name:site-1").model


@pytest.mark.parametrize(
    ("leaver", "message"),
    [
        ("site-1", "expected name: and a client's name"),
        ("node:1", "expected name: and a client's name"),
        ("name:", "expected name:NAME"),
        ("name:site", "matches 0 clients"),
        ("name:SITE-1", "matches 0 clients"),
    ],
)
def test_a_leaver_that_is_not_exactly_one_client_is_refused(
    job: Job, leaver: str, message: str
) -> None:
    job.run(rounds=1)
    for site in job.sites.values():
        site.seen.clear()
    with pytest.raises(ConfigError, match=message):
        job.erase(leaver)
    assert all(site.seen == [] for site in job.sites.values())


@pytest.mark.parametrize("behaviour", [{"online": False}, {"silent": True}])
def test_a_leaver_that_does_not_answer_is_erased_by_the_next_rung(
    job: Job, behaviour: dict[str, Any]
) -> None:
    job.run(rounds=3)
    for name, value in behaviour.items():
        setattr(job.site("site-1"), name, value)
    job.erase("name:site-1", methods=[], settings={})
    assert said(job.folder / "home")["method"]["rung"] != "local-step"


def test_a_retained_client_that_fails_is_left_out_and_named(job: Job) -> None:
    job.run(rounds=3)
    job.site("site-3").code = ReturnCode.EXECUTION_EXCEPTION
    job.erase("name:site-1")
    assert job.told.has("'site-3' failed: NVFlare says EXECUTION_EXCEPTION")
    assert job.told.has("left out", "'site-3'")
    assert job.store.serving_digest() is not None


def test_an_update_that_a_filter_changed_is_found_out(job: Job) -> None:
    """What the mean is made of is not what the leaver keeps: it refuses, and is not believed."""

    def noise(model: FLModel) -> FLModel:
        if "NUM_STEPS_CURRENT_ROUND" in model.meta:
            model.params = {name: value + 0.01 for name, value in model.params.items()}
        return model

    job.site("site-1").change = noise
    job.run(rounds=2)
    job.erase("name:site-1")
    assert said(job.folder / "home")["method"]["rung"] != "local-step"


def test_differences_instead_of_parameters_are_refused_by_name(job: Job) -> None:
    def differ(model: FLModel) -> FLModel:
        return FLModel(params_type="DIFF", params=model.params, meta=model.meta)

    job.run(rounds=2)
    job.site("site-2").change = differ
    job.erase("name:site-1")
    assert job.told.has("left out", "site-2")


def test_training_that_was_cut_short_goes_on(job: Job) -> None:
    job.run(rounds=3)
    whole = job.store.last_round()
    assert whole is not None
    other = Job(job.folder / "other", job._flare)

    class CutError(Exception):
        pass

    def cut(*_: Any, **__: Any) -> None:
        raise CutError

    begun = other.broadcast
    rounds = other.store.log.rounds
    other.broadcast = lambda *a, **b: cut() if len(rounds()) == 2 else begun(*a, **b)  # type: ignore[method-assign]
    with pytest.raises(CutError):
        other.run(rounds=3)
    other.broadcast = begun  # type: ignore[method-assign]
    other.run(rounds=3)
    assert other.told.has("training goes on after round 2 of 3")
    last = other.store.last_round()
    assert last is not None
    assert last.model == whole.model


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"home": "home"}, "home 'home': expected an absolute path"),
        ({"classes": 1}, "classes 1: expected a whole number of two or more"),
        ({"classes": "3"}, "classes '3': expected a whole number"),
        ({"model": "harness.flower.small:nothing"}, "has no 'nothing'"),
        ({"model": "harness.flower.small:SEED"}, "is not callable"),
        ({"leaver": "name:site-1", "options": {"colour": 1}}, "options: unknown 'colour'"),
        ({"leaver": "name:site-1", "options": {"max_rounds": "many"}}, "options: .*rounds"),
        ({"leaver": "name:site-1", "options": {"margins": {"overall": "x"}}}, "options: .*margins"),
    ],
)
def test_a_wrong_setting_is_told(job: Job, settings: dict[str, Any], message: str) -> None:
    job.run(rounds=1)
    with pytest.raises(ConfigError, match=message):
        job.run(**settings)


@pytest.mark.parametrize("told", [None, CLASSES])
def test_how_many_classes_there_are_reaches_the_erasure(
    job: Job, monkeypatch: pytest.MonkeyPatch, told: int | None
) -> None:
    asked, found = list[int | None](), unused_weights.find_layers

    def read(model: nn.Module, classes: int | None = None) -> unused_weights.ModelLayers:
        asked.append(classes)
        return found(model, classes)

    monkeypatch.setattr(unused_weights, "find_layers", read)
    job.run(rounds=3)
    waits = {"leaver_timeout": 0.3, "client_timeout": 0.3}
    job.run(leaver="name:site-1", trigger="other", options={**OPTIONS, **waits}, classes=told)
    assert asked[0] == told
    assert said(job.folder / "home")["method"]["rung"] == "local-step"


def test_a_network_without_a_linear_layer_is_erased_from_where_its_classes_are_told(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "last_layer", lambda *_: None)  # as if it had none
    job.run(rounds=2)
    with pytest.raises(ConfigError, match=r"FederationController\(\.\.\., classes=\)"):
        job.erase()
    job.run(leaver="name:site-1", trigger="other", classes=CLASSES)
    assert job.store.erased_clients()
    assert said(job.folder / "home")["method"]["rung"] == "local-step"


def test_what_goes_wrong_ends_the_job_with_its_reason(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    controller = FederationController(home=str(job.folder), model=MODEL)
    monkeypatch.setattr(controller, "system_panic", lambda reason, _: said.append(reason))

    def fail(*_: Any) -> None:
        raise SilentError("nobody is there")

    monkeypatch.setattr(controller, "work", fail)
    controller.control_flow(Signal(), job)
    assert said == ["secede: nobody is there"]


def test_who_is_not_erased_is_no_success(job: Job) -> None:
    job.run(rounds=2)
    for name in ("site-0", "site-2", "site-3"):
        job.site(name).silent = True
    with pytest.raises(SecedeError):
        job.erase("name:site-1")
    assert list((job.folder / "home" / "receipts").glob("*.json")) == []


def test_a_client_keeps_its_updates_where_the_job_does_not(job: Job) -> None:
    with pytest.raises(ConfigError, match="folder 'updates': expected an absolute path"):
        erasing("updates")
