"""Canaries in a job of NVFlare: planted, committed to, and read for an erasure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from nvflare.app_common.abstract.fl_model import FLModel

from harness.flower.small import SEED, TRAINING, load_model
from harness.nvflare import inprocess
from harness.nvflare.inprocess import Job
from harness.nvflare.small import SITES, erasing, load_data, said
from secede import state as states
from secede.canaries import CanaryOptions
from secede.data.samples import Samples
from secede.erasure.documents.canary_reading import NO_CANARIES
from secede.federation.training import orders, train
from secede.nvflare import ClientErasure

LONGER = replace(TRAINING, epochs=3)


def serve(erasure: ClientErasure, site: str) -> None:
    """Plant canaries, and train whenever there is something to train from."""
    samples = Samples(*erasure.with_canaries(load_data(site)))
    while (model := erasure.receive()) is not None:
        net = load_model()
        states.load_into(net, {name: torch.as_tensor(v) for name, v in model.params.items()})
        draw = torch.Generator().manual_seed(SEED)
        train(net, samples, LONGER, orders=orders(len(samples), LONGER.epochs, draw))
        weight = {"NUM_STEPS_CURRENT_ROUND": len(samples)}
        erasure.send(FLModel(params=dict(net.state_dict()), meta=weight))


@pytest.fixture
def planting(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    canaries = CanaryOptions(count=10, copies=2, max_share=0.5)
    monkeypatch.setattr(inprocess, "serve", serve)
    monkeypatch.setattr(inprocess, "erasing", lambda *a, **b: erasing(*a, canaries=canaries, **b))
    return job


def test_they_are_committed_to_and_read(planting: Job) -> None:
    planting.run(rounds=2)
    committed = planting.store.log.canaries()
    assert set(committed) == set(SITES)
    planting.erase("name:site-1")
    found = said(planting.folder / "home")
    assert found["scope"]["canaries"] == committed["site-1"].model_dump(mode="json")
    canaries = found["verification"]["canaries"]
    assert canaries["before"]["reading"]["count"] == committed["site-1"].commitment.samples
    assert canaries["looks"]


@pytest.mark.parametrize("told", [{"json": "{}"}, {"json": 5}, {5: "x"}, "x", {"reason": "\n"}])
def test_a_malformed_commitment_ends_no_job(planting: Job, told: Any) -> None:
    def spoil(model: FLModel) -> FLModel:
        if "secede.canaries" in (model.meta or {}):
            model.meta["secede.canaries"] = told
        return model

    planting.site("site-1").change = spoil
    planting.run(rounds=1)
    last = planting.store.last_round()
    assert last is not None
    assert {c.client for c in last.clients} == set(SITES)
    assert set(planting.store.log.canaries()) == set(SITES) - {"site-1"}


def test_without_them_the_verdict_stays_undetermined(job: Job) -> None:
    job.run(rounds=2)
    assert job.told.has("no canaries at site-0, site-1, site-2, site-3")
    job.erase("name:site-1")
    found = said(job.folder / "home")["verification"]
    assert (found["forgotten"], found["canaries"]["absent"]) == ("undetermined", NO_CANARIES)
