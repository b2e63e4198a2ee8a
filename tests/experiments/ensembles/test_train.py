from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from harness import audits
from secede.audit.ensembles.margins import ENSEMBLES
from secede.experiments.ensembles.material import Material
from secede.experiments.ensembles.members import PLAIN, QUANTISED, TRAINED_ON, Member
from secede.experiments.ensembles.train import RELEARNING, Job, train
from secede.experiments.parallel import Stopped

HISTORY = """
situation = { history = true, history_interval = 1 }
settings.federaser.interval = 1
"""


def one(job: Job, folder: Path, number: int = 0) -> tuple[Member, list[str]]:
    rounds = list[str]()
    return train(job, number, folder / "scratch", threading.Event(), rounds.append), rounds


def digests(done: Member) -> dict[str, str]:
    models: dict[str, str] = done.notes["models"]  # type: ignore[assignment]
    return models


def test_retraining_never_depends_on_the_deal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = audits.job(tmp_path)
    before = digests(one(job, tmp_path)[0])
    deal = Material.member
    monkeypatch.setattr(Material, "member", lambda self, number: deal(self, number + 100))
    after = digests(one(job, tmp_path)[0])
    for name in ("retrained", "retrained-again"):
        assert before[name] == after[name]
    for name in ("original", "erased"):
        assert before[name] != after[name]


def test_federations_differ_and_the_four_models_of_one_too(tmp_path: Path) -> None:
    job = audits.job(tmp_path)
    found = [digests(one(job, tmp_path, number)[0]) for number in range(2)]
    assert len({digest for models in found for digest in models.values()}) == 8
    assert digests(one(job, tmp_path)[0]) == found[0]


def test_variants_are_asked_the_same_and_all_rounds_are_reported(tmp_path: Path) -> None:
    job = audits.job(tmp_path, train_on=1, relearn=True)
    done, rounds = one(job, tmp_path)
    assert list(done.answers) == [PLAIN, QUANTISED, TRAINED_ON]
    assert {tuple(answers) for answers in done.answers.values()} == {
        ("original", "erased", "retrained", "retrained-again")
    }
    assert len(rounds) == job.rounds() == 3 * 2 + 2 + 4
    steps = done.further[RELEARNING]
    assert steps["original"] == 0
    assert set(steps) == set(ENSEMBLES)
    assert torch.equal(torch.from_numpy(done.member), job.material.member(0))


def test_a_method_with_a_history_leaves_none_behind(tmp_path: Path) -> None:
    job = audits.job(tmp_path, audits.CONFIG.replace("second-choice", "federaser") + HISTORY)
    done, _ = one(job, tmp_path)
    assert digests(done)["erased"]
    assert not list((tmp_path / "scratch").rglob("*.safetensors"))


def test_canaries_of_the_config_are_planted_beside_the_dealt_samples(tmp_path: Path) -> None:
    job = audits.job(tmp_path, audits.CONFIG + "canaries = { count = 8, max_share = 0.3 }\n")
    federation = job.federation(0, job.material.member(0))
    assert len(federation.engine.clients[0]) > job.material.dealt
    assert [len(client) for client in federation.engine.clients[1:]] == [100, 100]


def test_a_federation_that_is_stopped_ends_after_its_round(tmp_path: Path) -> None:
    stop, rounds = threading.Event(), list[str]()
    stop.set()
    with pytest.raises(Stopped):
        train(audits.job(tmp_path), 0, tmp_path / "scratch", stop, rounds.append)
    assert len(rounds) == 1
