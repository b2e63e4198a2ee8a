"""Tests `nvflare/flmodels.py` too."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from nvflare.apis.controller_spec import TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from harness.flower.small import initial, load_model, strategy
from harness.nvflare.inprocess import Job
from harness.nvflare.small import SITES
from secede import state as states
from secede.errors import ConfigError, GuardError, RecordError, SecedeError, SilentError
from secede.flower.protocol import arrays, messages
from secede.flower.protocol.nodes import online_nodes
from secede.flower.rounds import supported_strategies
from secede.flower.rounds.engine import FlowerEngine
from secede.flower.rounds.grid import Transport
from secede.nvflare import flmodels
from secede.nvflare.tasks import node_id_of
from secede.unlearning.client_tasks import COUNT, CountRight


def engine(job: Job, **options: Any) -> FlowerEngine:
    grid = job.grid()
    return FlowerEngine(
        transport=Transport(grid=grid, pause=0.01),
        strategy=strategy(),
        clients=dict(enumerate(online_nodes(grid))),
        template=arrays.template_of(load_model()),
        round_timeout=0.4,
        online_timeout=0.1,
        **options,
    )


def question(job: Job, site: str = "site-1", ttl: float = 5.0) -> Message:
    job.grid()  # gives messages their sender
    asked = messages.TaskHeader(task=COUNT, client=1, number=0)
    return messages.task_message(node_id_of(site), asked, initial(), ttl=ttl)


def round_for(job: Job, site: str = "site-1") -> Message:
    grid = job.grid()
    made = supported_strategies.train_messages(
        strategy(), ArrayRecord(initial()), ConfigRecord({"lr": 0.1}), grid, 4
    )
    return next(m for m in made if m.metadata.dst_node_id == node_id_of(site))


def test_clients_have_the_same_number_in_every_run(job: Job) -> None:
    assert [node.name for node in online_nodes(job.grid())] == list(SITES)
    first = [node.node for node in online_nodes(job.grid())]
    assert first == [node.node for node in online_nodes(job.grid())]
    assert first == [node_id_of(name) for name in SITES]
    assert len(set(first)) == len(SITES)


def test_who_is_disconnected_is_not_there(job: Job) -> None:
    job.site("site-2").online = False
    assert [node.name for node in online_nodes(job.grid())] == ["site-0", "site-1", "site-3"]


def test_a_round_is_an_ordinary_model_for_the_script(job: Job) -> None:
    kind, model = flmodels.task_of(round_for(job))
    assert (kind, model.current_round) == ("train", 4)
    assert model.params.keys() == initial().keys()
    for name, value in initial().items():
        np.testing.assert_array_equal(model.params[name], value.numpy())
    came = flmodels.message_of(FLModelUtils.from_shareable(FLModelUtils.to_shareable(model)))
    assert came is not None
    assert came[0] == "train"
    assert came[1].content["config"]["lr"] == 0.1
    assert list(came[1].content.array_records) == []  # they travel once


def test_a_model_of_another_controller_is_not_ours() -> None:
    assert flmodels.message_of(FLModel(params={"weight": np.zeros(3)})) is None


def test_a_task_ends_when_its_message_does(job: Job) -> None:
    job.site("site-1").silent = True
    grid = job.grid()
    list(grid.push_messages([question(job, ttl=1.2)]))
    assert [task.timeout for task in job.tasks] == [2]  # whole seconds, not fewer


def test_waiting_ends_though_nobody_answers(job: Job) -> None:
    for site in job.sites.values():
        site.silent = True
    started = time.monotonic()
    assert list(job.grid().send_and_receive([question(job)], timeout=0.2)) == []
    with pytest.raises(SilentError, match="'site-1' did not reply"):
        engine(job).ask(1, CountRight(), global_state=initial())
    assert time.monotonic() - started < 3


def test_an_aborted_job_waits_for_nobody(job: Job) -> None:
    grid = job.grid()
    job.abort.trigger("stop")
    for wait in (grid.get_nodes, lambda: grid.pull_messages(["x"])):
        with pytest.raises(SilentError, match="aborted"):
            wait()


@pytest.mark.parametrize("sent", [True, False])
def test_a_client_that_goes_away_is_lost_and_has_not_failed(job: Job, sent: bool) -> None:
    job.site("site-1").silent = sent
    job.site("site-1").online = sent
    transport = Transport(grid=job.grid(), pause=0.01)
    message = question(job)
    ids = list(transport.grid.push_messages([message]))
    if sent:
        job.end(job.tasks[-1], TaskCompletionStatus.CLIENT_DEAD)
    (reply,) = transport.grid.pull_messages(ids)
    assert reply.has_error()
    assert reply.metadata.src_node_id != node_id_of("site-1")


def test_a_task_that_was_answered_has_one_reply(job: Job) -> None:
    grid = job.grid()
    ids = list(grid.push_messages([question(job)]))
    assert len(list(grid.pull_messages(ids))) == 1
    job.end(job.tasks[-1], TaskCompletionStatus.OK)
    assert list(grid.pull_messages(ids)) == []


def test_a_failure_at_a_client_is_told_with_its_name(job: Job) -> None:
    job.site("site-1").code = ReturnCode.EXECUTION_EXCEPTION
    with pytest.raises(RecordError, match="'site-1'"):
        engine(job).ask(1, CountRight(), global_state=initial())
    assert job.told.has("'site-1' failed: NVFlare says EXECUTION_EXCEPTION")


def test_an_answer_counts_as_the_one_who_was_asked(job: Job) -> None:
    """A client that answers with another's message is still itself."""
    grid = job.grid()
    stolen = list[Any]()

    def steal(model: FLModel) -> FLModel:
        stolen.append(model)
        return model

    def replay(model: FLModel) -> FLModel:
        return stolen[0]

    job.site("site-0").change, job.site("site-1").change = steal, replay
    mine, other = question(job, "site-1"), question(job, "site-0")
    ids = list(grid.push_messages([other, mine]))
    replies = {r.metadata.reply_to_message_id: r for r in grid.pull_messages(ids)}
    assert replies[ids[1]].metadata.src_node_id == node_id_of("site-1")
    assert replies[ids[0]].metadata.src_node_id == node_id_of("site-0")


@pytest.mark.parametrize(
    "change",
    [
        lambda model: FLModel(params={name: v + 1 for name, v in model.params.items()}),
        lambda model: FLModel(params={name: v * 0.5 for name, v in model.params.items()}),
        lambda model: FLModel(params={"weight": np.zeros(3)}),
        lambda model: FLModel(metrics={"loss": 1.0}),
    ],
)
def test_an_answer_that_a_filter_changed_is_refused(job: Job, change: Any) -> None:
    job.site("site-1").change = change
    with pytest.raises(SecedeError, match="'site-1'"):
        engine(job).ask(1, CountRight(), global_state=initial())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (FLModel(params={"a": torch.ones(2)}), "NUM_STEPS_CURRENT_ROUND"),
        (
            FLModel(params={"a": torch.ones(2)}, meta={flmodels.WEIGHT: 0}),
            "NUM_STEPS_CURRENT_ROUND",
        ),
        (FLModel(params={"a": torch.ones(2)}, meta={flmodels.WEIGHT: True}), "NUM_STEPS"),
        (FLModel(params={"a": "b"}, meta={flmodels.WEIGHT: 3}), "'a' is no array of numbers"),
        (FLModel(params={"a": np.array(["b"])}, meta={flmodels.WEIGHT: 3}), "'a' is no array"),
        (FLModel(params={"a": np.array([{}])}, meta={flmodels.WEIGHT: 3}), "'a' is no array"),
        (FLModel(params_type="DIFF", params={"a": torch.ones(2)}), "params_transfer_type FULL"),
        (FLModel(metrics={"loss": 1.0}), "params_transfer_type FULL"),
    ],
)
def test_what_is_no_update_is_refused(job: Job, model: FLModel, message: str) -> None:
    with pytest.raises(GuardError, match=message):
        flmodels.reply_of(round_for(job), model)


def test_tensors_and_arrays_are_the_same_update(job: Job) -> None:
    state = {"w": torch.rand(3, 2), "n": torch.tensor(7)}
    found = []
    for params in (state, {name: value.numpy() for name, value in state.items()}):
        model = FLModel(params=params, meta={flmodels.WEIGHT: 3})
        (record,) = flmodels.reply_of(round_for(job), model).content.array_records.values()
        found.append(states.digest(arrays.to_tensors(record)))
    assert found == [states.digest(state)] * 2


def test_questions_are_answered_in_the_kind_they_came_in(job: Job) -> None:
    _, model = flmodels.task_of(question(job))
    came = flmodels.message_of(model)
    assert came is not None
    reply = messages.error_message(came[1], ConfigError("no"))
    (plain,) = flmodels.reply_model(reply, model).params.values()
    assert isinstance(plain, np.ndarray)
    model.params = {name: torch.from_numpy(v.copy()) for name, v in model.params.items()}
    (whole,) = flmodels.reply_model(reply, model).params.values()
    assert isinstance(whole, torch.Tensor)  # NVFlare drops what is none, where it exchanges tensors


def test_bytes_that_are_no_message_are_refused(job: Job) -> None:
    _, model = flmodels.task_of(question(job))
    (name,) = model.params
    for value in (np.zeros(5, np.uint8) + 9, np.zeros(5), "text"):
        with pytest.raises(GuardError, match="did a filter change it"):
            flmodels.message_of(FLModel(params={name: value}))
