from __future__ import annotations

from pathlib import Path

import pytest

from harness import audits
from secede import state as states
from secede.erasure import remove_after_round
from secede.experiments.arms import create_method, server_of
from secede.experiments.ensembles.erase import Erased, WatchedEngine, erase
from secede.experiments.ensembles.rounds import train_rounds
from secede.experiments.ensembles.train import Job
from secede.experiments.setup import Federation
from secede.state import State
from secede.unlearning.method import POST_TRAINING

SERVER_SIDE = audits.CONFIG.replace("second-choice", "weight-negation")


def trained(job: Job) -> tuple[Federation, State]:
    federation = job.federation(0, job.material.member(0))
    start = federation.engine.initial_state("initial")
    state = train_rounds(federation.engine, start, federation.everyone, 2, phase="training")
    federation.engine.remembers = False
    return federation, state


def erased(job: Job) -> tuple[Federation, State, Erased]:
    federation, state = trained(job)
    found = erase(job.config, federation, state, job.options, classes=3, search=job.search)
    return federation, state, found


def test_the_erasure_is_step_round_removal_round(tmp_path: Path) -> None:
    job = audits.job(tmp_path)
    federation, state, found = erased(job)
    engine = federation.engine
    method = create_method(job.config, "second-choice", federation)
    server = server_of(federation, state)
    start = method.start(server)
    first = method.recover(server, start.state, start.memory, 1)
    updates = engine.train_round(
        start.state, federation.retained, phase=POST_TRAINING, number=1
    ).updates
    model = engine.fresh_model("template")
    removal = remove_after_round(
        first.state,
        start.state,
        [update.state for update in updates],
        model=model,
        trainable=[name for name, _ in model.named_parameters()],
        classes=3,
        is_local=True,
    )
    second = method.recover(server, removal.state, first.memory, 2)
    assert states.digest(found.state) == states.digest(second.state)
    assert found.removal is not None
    assert found.removal.share == removal.share > 0
    assert (found.rounds, found.rung) == (2, "local-step")


def test_a_single_round_or_a_wish_keeps_unused_weights(tmp_path: Path) -> None:
    for options in ({"max_rounds": 1}, {"keep_unused_weights": True}):
        found = erased(audits.job(tmp_path, **options))[2]
        assert found.removal is None
        assert found.to_record()["unused_weights"] is None


def test_after_a_server_side_method_only_unmoved_weights_go(tmp_path: Path) -> None:
    found = erased(audits.job(tmp_path, SERVER_SIDE, keep_unused_weights=True))[2]
    assert found.rung == "server-side"
    assert found.removal is not None
    assert found.removal.share == 0


def test_a_method_that_retrains_removes_no_weights(tmp_path: Path) -> None:
    found = erased(audits.job(tmp_path, audits.CONFIG.replace("second-choice", "rapid-retrain")))[2]
    assert (found.rung, found.rounds, found.removal) == ("retraining", 2, None)


def test_the_cost_is_that_of_the_start_and_of_each_round(tmp_path: Path) -> None:
    federation, state, found = erased(audits.job(tmp_path, SERVER_SIDE))
    assert found.cost.rounds == found.rounds == 2
    uploads = 2 * len(federation.retained)
    assert found.cost.upload_bytes == uploads * states.size_bytes(state)


def test_under_secure_aggregation_the_mean_alone_tells_what_is_unused(tmp_path: Path) -> None:
    hidden = "situation.secure_aggregation = true\n" + audits.CONFIG
    plain, summed = (erased(audits.job(tmp_path, text))[2] for text in (audits.CONFIG, hidden))
    assert plain.removal is not None
    assert summed.removal is not None
    assert plain.removal.share != pytest.approx(summed.removal.share)


def test_an_engine_remembers_its_last_round(tmp_path: Path) -> None:
    federation, state = trained(audits.job(tmp_path))
    engine = WatchedEngine(federation.engine)
    rounds = [engine.last_round]
    reply = engine.train_round(state, federation.retained, phase="x", number=1)
    rounds.append(engine.last_round)
    assert rounds == [None, (state, reply)]
