"""Mods of a user around and inside of ours: an erasure passes them, or round one warns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod

from harness.flower.small import (
    SEED,
    TRAINING,
    Federation,
    client_app,
    load_data,
    load_model,
    train_here,
)
from secede.flower import ClientErasure
from secede.flower.client.mod import Handler


def expecting(message: Message, context: Context, call_next: Handler) -> Message:
    """A mod that reads a record of its own in every message, as those of users do."""
    content: Any = message.content
    assert content["config"]["lr"] == 0.1
    return call_next(message, context)


def swallowing(message: Message, context: Context, call_next: Handler) -> Message:
    if message.metadata.message_type in ("train", "evaluate"):
        return call_next(message, context)
    return Message(RecordDict({"mine": ConfigRecord({"ok": True})}), reply_to=message)


def renaming(message: Message, context: Context, call_next: Handler) -> Message:
    reply: Message = call_next(message, context)
    if message.metadata.message_type == "query.secede":
        reply.content = RecordDict({f"mine.{n}": record for n, record in reply.content.items()})
    return reply


def stamping(message: Message, context: Context, call_next: Handler) -> Message:
    """A mod that adds a record of its own to what comes, and keeps count: no harm."""
    message.content["mine"] = ConfigRecord({"seen": 1})
    context.state["mine"] = ConfigRecord({"seen": 1})
    return call_next(message, context)


def inside(mod: Any) -> ClientApp:
    erasure = ClientErasure(load_model, load_data, training=TRAINING, seed=SEED, consent=True)
    app = ClientApp(mods=[erasure.mod, mod])
    app.train()(train_here)
    return erasure.register(app)


@pytest.mark.parametrize("mod", [expecting, swallowing, renaming])
def test_a_mod_inside_of_ours_gets_no_question_of_an_erasure(tmp_path: Path, mod: Any) -> None:
    federation = Federation(tmp_path, app=inside(mod))
    federation.train(2)
    assert not federation.told.has("an erasure cannot ask")
    outcome = federation.erase("name:site-1")
    assert outcome.state == "promoted"
    assert outcome.rung == "local-step"


@pytest.mark.parametrize(
    ("mod", "words"),
    [
        (expecting, "'expecting' fails: KeyError: "),
        (swallowing, "'swallowing' does not pass it on (query.leave, query.secede, train.unlearn)"),
        (renaming, "'renaming' changes the reply (query.secede)"),
        (LocalDpMod(1.0, 0.05, 5.0, 0.1), "'LocalDpMod' fails: "),
    ],
)
def test_a_mod_around_ours_that_stops_an_erasure_is_named_in_the_first_round(
    tmp_path: Path, mod: Any, words: str
) -> None:
    federation = Federation(tmp_path, app=client_app(mods=[mod]))
    federation.train(3)
    for number in range(4):
        said = [s for s in federation.told if f"cannot ask client 'site-{number}'" in s]
        assert len(said) == 1
        assert words in said[0]
    assert len(federation.store.log.rounds()) == 3  # and training goes on


@pytest.mark.parametrize("mod", [stamping, arrays_size_mod])
def test_a_mod_around_ours_that_passes_all_on_is_no_fault(tmp_path: Path, mod: Any) -> None:
    federation = Federation(tmp_path, app=client_app(mods=[mod]))
    federation.train(2)
    assert not federation.told.has("an erasure cannot ask")
    assert federation.erase("name:site-1").rung == "local-step"


def test_an_app_that_forgets_to_register_is_named_in_the_first_round(tmp_path: Path) -> None:
    erasure = ClientErasure(load_model, load_data, training=TRAINING, seed=SEED, consent=True)
    app = ClientApp(mods=[erasure.mod])
    app.train()(train_here)
    federation = Federation(tmp_path, app=app)
    federation.train(2)
    said = [line for line in federation.told if "cannot ask client 'site-1'" in line]
    assert len(said) == 1
    assert "erasure.register(ClientApp(...))" in said[0]
