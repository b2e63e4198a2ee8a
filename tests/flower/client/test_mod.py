"""Tests `flower/client/leaving_client.py` and `flower/protocol/messages.py` too."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

from harness.flower.inprocess import InProcess, sites, wired
from harness.flower.small import SIZES, Federation, client_app, initial, load_data, load_model
from secede import state as states
from secede.errors import ConfigError, GuardError, RecordError
from secede.flower import ClientErasure
from secede.flower.client.kept_updates import KeptUpdates
from secede.flower.protocol import arrays, messages
from secede.unlearning import client_tasks


def disk(federation: Federation, n: int) -> KeptUpdates:
    return KeptUpdates(federation.folder / f"disk-{n}" / f"partition-{n}")


def off_by(federation: Federation) -> float:
    """Return how far the reference from site 1's disk is from the mean of what the others kept."""
    last, model = federation.store.last_round(), federation.store.last_model()
    assert last is not None
    assert model is not None
    home = federation.store.identity
    own = [disk(federation, n).newest(home) or {} for n in range(len(SIZES))]
    others = [n for n in range(len(SIZES)) if n != 1]
    expected = states.mean([own[n] for n in others], [SIZES[n] for n in others])
    found = states.reference(model, own[1], weight=last.share("site-1"))
    return states.distance(found, expected)


# The order of mods: outside of whatever changes the update


def test_outside_the_noise_the_kept_update_is_what_the_mean_is_made_of(tmp_path: Path) -> None:
    noise = LocalDpMod(1.0, 0.05, 5.0, 0.1)
    federation = Federation(tmp_path, app=client_app(train_mods=[noise]))
    federation.train(2)
    last = federation.store.last_round()
    assert last is not None
    told = {c.client: str(c.digest) for c in last.clients}
    assert all(disk(federation, n).get(told[f"site-{n}"]) for n in range(len(SIZES)))
    assert off_by(federation) < 1e-4


def test_inside_the_noise_the_reference_is_off_and_the_leaver_says_so(tmp_path: Path) -> None:
    noise = LocalDpMod(1.0, 0.05, 5.0, 0.1)

    def on_training(message: Message, context: Context, call_next: Any) -> Message:
        plain = message.metadata.message_type == "train"
        return noise(message, context, call_next) if plain else call_next(message, context)

    federation = Federation(tmp_path, app=client_app(mods=[on_training]))  # the wrong order
    federation.train(2)
    assert off_by(federation) > 0.01
    outcome = federation.erase("name:site-1")
    assert outcome.failures[0].outcome == "unable"
    assert federation.told.has("client 'site-1'", "inside of a mod that changes it")


def test_noise_around_everything_does_not_reach_the_unlearnt_state(tmp_path: Path) -> None:
    app = client_app(mods=[LocalDpMod(1.0, 0.05, 5.0, 0.1)])  # around our handlers, too
    federation = Federation(tmp_path, app=app)
    federation.train(1)
    outcome = federation.erase("name:site-1")
    assert outcome.failures[0].rung == "local-step"  # named, and never a state with noise
    assert outcome.rung != "local-step"


def test_other_messages_than_training_pass_untouched(tmp_path: Path) -> None:
    erasure = ClientErasure(load_model, load_data, folder=tmp_path)
    context = Context(1, 2, {}, RecordDict(), {})
    for kind in ("train.unlearn", "evaluate", "query.secede"):
        InProcess(sites(1, tmp_path))
        message = Message(RecordDict({"a": ArrayRecord(initial())}), 5, kind)
        reply = Message(RecordDict({"a": ArrayRecord(initial())}), reply_to=message)

        def call(_message: Message, _context: Context, reply: Message = reply) -> Message:
            return reply

        assert erasure.mod(message, context, call) is reply
    assert erasure.updates(context).all() == ()


# What a client is asked


def ask(tmp_path: Path, change: Any = None, **fields: Any) -> dict[str, Any]:
    grid = InProcess(sites(1, tmp_path), client_app(methods=("projected-ascent",)))
    # A client answers for models alone that it knows from a round.
    KeptUpdates(tmp_path / "disk-0" / "partition-0").put(initial(), run="1", number=1, samples=60)
    asked = {"task": client_tasks.COUNT, "client": 0, "number": 0, **fields}
    message = messages.task_message(
        grid.sites[next(iter(grid.sites))].node, messages.TaskHeader(**asked), initial(), ttl=10
    )
    if change is not None:
        change(message)
    (identity,) = grid.push_messages([message])
    (reply,) = grid.pull_messages([identity])
    content: Any = reply.content
    found: dict[str, Any] = json.loads(content["secede.answer"]["json"])
    return found


def test_an_honest_question_is_answered(tmp_path: Path) -> None:
    assert sum(ask(tmp_path)["numbers"]["samples"]) == SIZES[0]


def set_state(record: ArrayRecord) -> Any:
    return lambda message: message.content.__setitem__("secede.state", record)


def set_json(text: str) -> Any:
    record = ConfigRecord({"json": text})
    return lambda message: message.content.__setitem__("secede.task", record)


HOSTILE: dict[str, tuple[Any, str]] = {
    "another network": (set_state(arrays.pack({"w": torch.zeros(2)})), "names differ"),
    "not finite": (
        set_state(arrays.pack({n: v * float("inf") for n, v in initial().items()})),
        "not finite",
    ),
    "too long": (
        set_state(ArrayRecord({"state": Array("uint8", (9,), "safetensors", b"x" * 10**6)})),
        "expected at most",
    ),
    "a plain record": (set_state(ArrayRecord(initial())), "no state in safetensors form"),
    "no JSON": (set_json("{"), "not valid JSON"),
    "a list": (set_json("[]"), "expected a JSON object, found list"),
    "nothing": (set_json("{}"), "header is malformed: .*Field required"),
    "more": (
        set_json('{"task": "count-right", "client": 0, "number": 0, "x": 1}'),
        "x: Extra inputs are not permitted",
    ),
    "NaN": (set_json('{"task": "count-right", "client": 0, "number": NaN}'), "NaN is not a number"),
    "deep": (set_json("[" * 100_000), "nested more than 32 deep"),
}


@pytest.mark.parametrize(("change", "text"), HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_question_is_refused_in_words(tmp_path: Path, change: Any, text: str) -> None:
    import re

    found = ask(tmp_path, change)
    assert found["error"] == "GuardError"
    assert re.search(text, found["text"])


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("second-choice", "not allowed here"),  # this client allows projected ascent alone
        ("os:system", "not allowed here"),
        ("retrain", "not allowed here"),
        ("../reference", "not allowed here"),
    ],
)
def test_a_client_runs_the_methods_it_allows_and_no_code_from_outside(
    tmp_path: Path, method: str, text: str
) -> None:
    found = ask(tmp_path, task=client_tasks.LOCAL_STEP, method=method)
    assert found["error"] == "ConfigError"
    assert text in found["text"]


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    found = ask(
        tmp_path, task=client_tasks.LOCAL_STEP, method="projected-ascent", settings={"x": 1}
    )
    assert "unknown key" in found["text"]


def test_a_task_comes_by_its_own_kind_of_message(tmp_path: Path) -> None:
    def disguise(message: Message) -> None:
        message.metadata.message_type = "train.unlearn"

    assert "came as 'train.unlearn'" in ask(tmp_path, disguise)["text"]


def test_an_unknown_local_step_is_refused_when_the_app_is_written() -> None:
    with pytest.raises(ConfigError, match="'retrain' is no local step"):
        ClientErasure(load_model, load_data, methods=("retrain",))


# What a client keeps


def keep(updates: KeptUpdates, value: float, **options: Any) -> str:
    state = {"w": torch.full((3,), value)}
    return str(updates.put(state, run="1", number=int(value), samples=4, **options).digest)


def test_the_last_two_updates_stay_and_the_serving_one(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
    first = keep(updates, 1)
    for value in (2, 3, 4):
        keep(updates, value, serving=first)
    assert [kept.round for kept in updates.all()] == [4, 3, 1]
    keep(updates, 5)
    assert [kept.round for kept in updates.all()] == [5, 4]
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert updates.get(first) is None


def test_what_a_kill_left_half_written_goes(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
    kept = keep(updates, 1)
    (tmp_path / ".x.part").write_bytes(b"half")
    (tmp_path / f"{'0' * 64}.safetensors").write_bytes(b"written, but not in the index")
    assert updates.get(kept) is not None
    keep(updates, 2)
    assert not (tmp_path / ".x.part").exists()
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_a_damaged_index_or_update_is_named(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
    kept = keep(updates, 1)
    states.save({"w": torch.zeros(3)}, tmp_path / f"{kept}.safetensors")
    with pytest.raises(RecordError, match="not those that were written"):
        updates.get(kept)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(RecordError, match=r"index.json: missing or damaged"):
        updates.all()


# Records


def test_records_and_states_are_the_same_values() -> None:
    message = Message(RecordDict({"a": ArrayRecord(initial())}), 5, "train")
    message.metadata.__dict__["_message_id"] = "1"
    record = wired(message).content.array_records["a"]
    assert states.digest(arrays.to_state(record, initial())) == states.digest(initial())
    assert states.digest(arrays.unpack(arrays.pack(initial()), initial())) == states.digest(
        initial()
    )


def test_counters_that_a_mean_made_floats_are_whole_again() -> None:
    like = {"w": torch.zeros(2), "n": torch.tensor(0)}
    record = ArrayRecord({"w": Array(np.zeros(2, np.float32)), "n": Array(np.asarray(7.0))})
    found = arrays.to_state(record, like, averaged=True)
    assert found["n"].dtype == torch.int64
    assert int(found["n"]) == 7
    with pytest.raises(GuardError, match="'n' is"):
        arrays.to_state(record, like)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (Array("float32", (2,), "pickle", b"x"), "serialised as 'pickle'"),
        (Array("float32", (2,), "numpy.ndarray", b"x" * 20), "no array of torch.float32"),
        (Array("float32", (2,), "numpy.ndarray", b"x" * 10**6), "no array of torch.float32"),
        (Array(np.zeros(3, np.float32)), r"no array of torch.float32 and shape \(2,\)"),
        (Array(np.zeros(2)), "no array of torch.float32"),
    ],
)
def test_a_hostile_array_is_refused(array: Array, text: str) -> None:
    with pytest.raises(GuardError, match=text):
        arrays.to_state(ArrayRecord({"w": array}), {"w": torch.zeros(2)})


def test_updates_are_for_their_owner_alone(tmp_path: Path) -> None:
    keep(KeptUpdates(tmp_path / "site"), 1)
    assert stat.S_IMODE((tmp_path / "site").stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "site").iterdir()}
    assert modes == {0o600}
