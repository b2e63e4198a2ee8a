"""What clients keep of themselves, in a whole federation that trains and erases."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message

from harness.flower.kept import B, disk, keep
from harness.flower.small import Federation, client_app, initial, strategy
from secede import state as states
from secede.flower import Store, recording


def serving(federation: Federation, n: int) -> str:
    last = federation.store.last_round()
    assert last is not None
    (digest,) = (each.digest for each in last.clients if each.client == f"site-{n}")
    assert digest is not None
    return digest


def cut(federation: Federation, store: Store) -> None:
    """Train up to the aggregate, and no further."""
    found = recording(strategy(), store, online_timeout=0.3, from_scratch=True)

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    found.aggregate_train = killed  # type: ignore[method-assign,assignment]
    grid = federation.grid()
    begin = federation.store.last_model() or initial()
    shifted = {name: value + 0.01 * grid.run_id for name, value in begin.items()}
    with pytest.raises(KeyboardInterrupt):
        found.start(grid, ArrayRecord(shifted), num_rounds=1, timeout=5)


def test_trainings_that_were_cut_do_not_cost_the_serving_update(federation: Federation) -> None:
    federation.train(1)
    for _ in range(3):
        cut(federation, federation.store)
    assert len(disk(federation, 1).all()) == 3
    assert disk(federation, 1).get(serving(federation, 1)) is not None
    assert federation.erase().rung == "local-step"


def lose_a_round(federation: Federation, n: int) -> None:
    """Train a round that a client takes part in and whose mean is made without it."""
    site = federation.site(f"site-{n}")
    site.answer = lambda question, reply: (
        None if question.metadata.message_type == "train" else reply
    )
    federation.train(1)
    site.answer = None


def around_training(message: Message, context: Any, call_next: Any) -> Message:
    """Change each update after it was kept, as noise in the wrong place does."""
    found: Message = call_next(message, context)
    if message.metadata.message_type == "train":
        for name, record in found.content.array_records.items():
            state = {entry: value + 0.01 for entry, value in record.to_torch_state_dict().items()}
            found.content[name] = ArrayRecord(state)
    return found


def test_an_update_by_a_name_that_is_not_its_own_is_not_found(tmp_path: Path) -> None:
    federation = Federation(tmp_path, app=client_app([around_training]))
    federation.train(1)
    cut(federation, federation.store)
    assert serving(federation, 1) in {kept.digest for kept in disk(federation, 1).all()}
    outcome = federation.erase()
    assert outcome.failures[0].outcome == "unable"
    assert federation.told.has("client 'site-1'", "inside of a mod that changes it")


def test_without_a_share_any_update_will_do_whatever_it_is_called(tmp_path: Path) -> None:
    federation = Federation(tmp_path, app=client_app([around_training]))
    federation.train(1)
    called = serving(federation, 1)
    lose_a_round(federation, 1)
    assert called in {kept.digest for kept in disk(federation, 1).all()}
    assert federation.erase().rung == "local-step"


@pytest.mark.parametrize("share", [True, False])
def test_a_damaged_update_is_as_good_as_none_and_is_named(
    federation: Federation, share: bool
) -> None:
    federation.train(2)
    if not share:
        lose_a_round(federation, 1)
    newest, *_ = disk(federation, 1).all()
    for path in disk(federation, 1).folder.glob("*.safetensors"):
        states.save({name: value + 1 for name, value in initial().items()}, path)
    outcome = federation.erase()
    assert outcome.failures[0].outcome == "unable"
    said = f"{newest.stem}.safetensors: its values are not those that were written"
    assert federation.told.has("client 'site-1'", said)


def test_without_a_share_a_damaged_update_gives_way_to_another(federation: Federation) -> None:
    federation.train(2)
    called = serving(federation, 1)
    lose_a_round(federation, 1)
    (kept,) = (each for each in disk(federation, 1).all() if each.digest == called)
    (disk(federation, 1).folder / f"{kept.stem}.safetensors").write_bytes(b"{")
    assert federation.erase().rung == "local-step"


def test_rounds_into_another_home_do_not_cost_the_serving_update(federation: Federation) -> None:
    federation.train(1)
    other = Store(federation.folder / "other", federation.store.load_model)
    shifted = {name: value + 1 for name, value in initial().items()}
    recording(strategy(), other, online_timeout=0.3).start(
        federation.grid(), ArrayRecord(shifted), num_rounds=3, timeout=5
    )
    assert disk(federation, 1).get(serving(federation, 1)) is not None
    assert federation.erase().rung == "local-step"


def test_a_users_function_sees_nothing_of_what_we_tell(tmp_path: Path) -> None:
    outer, inner = set[tuple[str, ...]](), set[tuple[str, ...]]()

    def look(seen: set[tuple[str, ...]]) -> Any:
        def mod(message: Message, context: Any, call_next: Any) -> Message:
            seen.add(tuple(sorted(message.content)))
            found: Message = call_next(message, context)
            return found

        return mod

    Federation(tmp_path, app=client_app([look(outer)], [look(inner)])).train(1)
    tried = ("secede.state", "secede.task")  # in the first round, like a question of an erasure
    assert outer == {("arrays", "config", "secede.keep"), tried}
    assert inner == {("arrays", "config")}


def test_an_erased_client_deletes_its_updates_for_this_home(federation: Federation) -> None:
    federation.train(2)
    keep(disk(federation, 1), 7, home=B)
    federation.erase()
    assert [kept.home for kept in disk(federation, 1).all()] == [B]
    assert disk(federation, 2).all() != ()
    assert federation.told.has("'site-1' has deleted its own updates, 2 of them")


def test_an_erased_client_that_is_away_is_told_when_it_is_back(federation: Federation) -> None:
    federation.train(2)

    def vanish(question: Message, reply: Message) -> Message | None:
        return None if question.metadata.message_type == "query.leave" else reply

    federation.site("site-1").answer = vanish
    federation.erase()
    assert len(disk(federation, 1).all()) == 0  # it did, and could not say so
    assert federation.told.has("'site-1' did not report that it deleted")


def test_models_at_the_server_are_for_their_owner_alone(federation: Federation) -> None:
    federation.train(1)
    models = federation.store.path / "models"
    assert stat.S_IMODE(models.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in models.iterdir()} == {0o600}


def test_a_home_is_known_by_what_was_drawn_once(federation: Federation) -> None:
    first, second = federation.store.identity, federation.store.identity
    assert first == second
    written = json.loads((federation.store.path / "identity.json").read_text())
    assert written == {"home": first}
    assert Store(federation.folder / "x", federation.store.load_model).identity != first
