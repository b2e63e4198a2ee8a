"""Where trainings begin, and what lineage and receipt say of them."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ArrayRecord

from harness.flower.dying import dying
from harness.flower.journals import home, told
from harness.flower.small import Federation, initial, strategy
from secede import files
from secede import state as states
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.model_registry import Model, ModelRegistry
from secede.erasure.workflow import consistency
from secede.errors import ConfigError, GuardError, RecordError
from secede.flower import recording
from secede.flower.backend import FlowerBackend
from secede.flower.rounds.grid import Transport
from secede.flower.storage import register
from secede.flower.storage.training_state import Training, TrainingState


def start(federation: Federation, rounds: int, **options: Any) -> None:
    """Train as an app does that gives fresh weights each time."""
    made = recording(strategy(), federation.store, online_timeout=0.3, **options)
    made.start(federation.grid(), ArrayRecord(initial()), num_rounds=rounds, timeout=5)


def models(federation: Federation) -> list[Model]:
    with ModelRegistry(home(federation) / "models.sqlite", read_only=True) as registry:
        return list(registry.models())


def found(federation: Federation) -> None:
    with files.private(), federation.store.lock():
        register.register_federation(federation.store)


def retraining(federation: Federation) -> int:
    transport = Transport(grid=federation.grid())
    return FlowerBackend(transport, strategy(), federation.store).training_rounds


def test_the_next_training_goes_on_from_the_model_and_says_so(federation: Federation) -> None:
    start(federation, 2)
    assert federation.told[0] == "training begins from fresh weights, the first of this home"
    start(federation, 1)
    _, second, third = federation.store.log.rounds()
    assert third.start == second.model
    assert federation.told.has(f"goes on from the serving model {second.model[:12]}…", "2 rounds")


def test_after_an_erasure_it_goes_on_from_the_model_that_serves(federation: Federation) -> None:
    start(federation, 2)
    outcome = federation.erase("name:site-1")
    start(federation, 1)
    last = federation.store.last_round()
    assert last is not None
    assert last.start == outcome.model
    assert federation.told.has("the result of 2 rounds of training and the erasure of site-1")


def test_from_scratch_is_said_loudly(federation: Federation) -> None:
    start(federation, 2)
    start(federation, 1, from_scratch=True)
    _, second, third = federation.store.log.rounds()
    assert third.start == states.digest(initial())
    assert federation.told.has("FROM SCRATCH", f"replaces model {second.model[:12]}…")
    assert [r.number for r in federation.store.log.lineage()] == [3]


def test_from_scratch_with_an_earlier_model_is_refused(federation: Federation) -> None:
    start(federation, 1)
    given = ArrayRecord(federation.store.last_model() or {})
    anew = recording(strategy(), federation.store, from_scratch=True)
    with pytest.raises(
        ConfigError, match="training from scratch was requested, but it is started with mod"
    ):
        anew.start(federation.grid(), given, num_rounds=1)


def test_another_model_of_the_store_is_where_it_begins(federation: Federation) -> None:
    start(federation, 1)
    first = federation.store.last_model()
    assert first is not None
    start(federation, 1)
    federation.recording().start(federation.grid(), ArrayRecord(first), num_rounds=1, timeout=5)
    begun, _, last = federation.store.log.rounds()
    assert last.start == begun.model
    assert federation.store.log.lineage() == [begun, last]


def test_a_model_from_scratch_has_no_parent_and_its_receipt_counts_its_own_rounds(
    federation: Federation,
) -> None:
    start(federation, 4)
    federation.erase("name:site-1")
    last = federation.store.last_round()
    assert last is not None
    start(federation, 2, from_scratch=True)
    assert retraining(federation) == 2
    outcome = federation.erase("name:site-0")
    first, erased, fresh, serving = models(federation)
    assert [m.parent for m in (first, erased, fresh, serving)] == [
        None,
        first.digest,
        None,
        fresh.digest,
    ]
    assert fresh.clients == ("site-0", "site-2", "site-3")
    assert outcome.receipt is not None
    scope = told(outcome.receipt)["scope"]
    assert (scope["first_round"], scope["last_round"]) == (last.number + 1, last.number + 2)
    assert scope["rounds"] == 2
    assert told(outcome.receipt)["models"] == {"before": fresh.digest, "after": serving.digest}
    with (
        Journal(home(federation) / "journal.sqlite", read_only=True) as journal,
        Ledger(home(federation) / "ledger.sqlite", read_only=True) as ledger,
        ModelRegistry(home(federation) / "models.sqlite", read_only=True) as registry,
    ):
        consistency.check_home(federation.store.home, journal, ledger, registry)
        bodies = [row.body for row in ledger.rows() if row.kind == "model"]
    assert {body["parent"] for body in bodies if body["model"] == fresh.digest} == {None}


def test_a_model_that_went_on_carries_the_clients_of_both(federation: Federation) -> None:
    federation.site("site-3").online = False
    start(federation, 2)
    found(federation)
    federation.site("site-3").online, federation.site("site-0").online = True, False
    start(federation, 1)
    found(federation)
    before, after = models(federation)
    assert (after.parent, before.status) == (before.digest, "superseded")
    assert before.clients == ("site-0", "site-1", "site-2")
    assert after.clients == ("site-0", "site-1", "site-2", "site-3")
    assert retraining(federation) == 3
    scopes = {name: register.scope(federation.store, name) for name in ("site-0", "site-3")}
    assert (scopes["site-0"].first_round, scopes["site-0"].rounds) == (1, 2)
    assert (scopes["site-3"].first_round, scopes["site-3"].rounds) == (3, 1)


def test_who_was_in_what_was_replaced_alone_is_known_and_in_no_model(
    federation: Federation,
) -> None:
    start(federation, 2)
    federation.site("site-3").online = False
    start(federation, 2, from_scratch=True)
    found(federation)
    (only,) = models(federation)
    assert only.clients == ("site-0", "site-1", "site-2")
    (gone,) = (c for c in federation.store.home.federation.clients if c.name == "site-3")
    assert (gone.scope.rounds, gone.scope.weight) == (2, 0)


def test_what_was_cut_short_is_never_taken_without_a_word(federation: Federation) -> None:
    with pytest.raises(KeyboardInterrupt):
        federation.train(4, grid=dying(federation, 3))
    with pytest.raises(
        ConfigError, match=r"4 rounds was cut short after round 2: .*--accept-unfinished"
    ):
        federation.erase("name:site-1")
    assert not (home(federation) / "models.sqlite").exists()
    federation.store.accept_unfinished()
    assert federation.erase("name:site-1").state == "promoted"


@pytest.mark.parametrize("asked", [True, False])
def test_one_from_scratch_without_a_round_hides_no_training_that_was_cut(
    federation: Federation, asked: bool
) -> None:
    with pytest.raises(KeyboardInterrupt):
        federation.train(4, grid=dying(federation, 3))
    trainings = TrainingState(home(federation))
    if asked:
        trainings.request_from_scratch(1)
        assert trainings.planned_rounds() == 1
    else:
        anew = recording(strategy(), federation.store, online_timeout=0.3, from_scratch=True)
        with pytest.raises(KeyboardInterrupt):
            anew.start(dying(federation, 1), ArrayRecord(initial()), num_rounds=1)
        assert trainings.planned_rounds() == 4
    with pytest.raises(ConfigError, match="4 rounds was cut short after round 2"):
        found(federation)
    if asked:
        trainings.accept_unfinished()
        found(federation)
        start(federation, 1)  # as it was asked for
        assert [r.training for r in federation.store.log.lineage()] == [1]
    else:
        start(federation, 4)
        assert [r.training for r in federation.store.log.lineage()] == [0, 0, 0, 0]
    found(federation)


def test_what_was_cut_short_is_finished_by_starting_it_again(federation: Federation) -> None:
    with pytest.raises(KeyboardInterrupt):
        federation.train(4, grid=dying(federation, 3))
    start(federation, 4)
    assert len(federation.store.log.lineage()) == 4
    assert federation.erase("name:site-1").state == "promoted"


def test_what_was_asked_for_from_scratch_begins_so_and_goes_on_so(federation: Federation) -> None:
    start(federation, 2)
    TrainingState(home(federation)).request_from_scratch(3)
    federation.site("site-0").online = False
    for number in (1, 2):  # after the first kill it has no round, and still is to begin
        with pytest.raises(KeyboardInterrupt):
            federation.recording().start(
                dying(federation, number), ArrayRecord(initial()), num_rounds=3
            )
    start(federation, 3)
    assert [r.training for r in federation.store.log.rounds()] == [0, 0, 1, 1, 1]
    assert [r.number for r in federation.store.log.lineage()] == [3, 4, 5]
    assert "training goes on after round 1 of 3" in federation.told
    start(federation, 1)  # the wish is fulfilled
    assert len(federation.store.log.lineage()) == 4


def test_a_training_that_nobody_knows_of_is_told_by_its_file(federation: Federation) -> None:
    trainings = TrainingState(home(federation))
    assert (trainings.last(), trainings.unfinished()) == (None, None)
    trainings.write(Training(number=3, rounds=2))
    assert trainings.unfinished() is None  # no round of it
    (home(federation) / "training.json").write_text("{}")
    with pytest.raises(RecordError, match=r"training.json: missing or damaged"):
        trainings.last()


def test_a_refused_start_changes_nothing(federation: Federation) -> None:
    start(federation, 2)
    old = federation.store.last_model()
    assert old is not None
    federation.erase("name:site-1")
    before = (home(federation) / "training.json").read_bytes()
    with pytest.raises(GuardError, match="retired"):
        federation.recording().start(federation.grid(), ArrayRecord(old), num_rounds=1)
    assert (home(federation) / "training.json").read_bytes() == before


def test_a_kill_between_registry_and_ledger_is_mended_at_the_next_start(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(federation, 2)
    real, left = Ledger.append_once, [0, 1]

    for rows in left:
        before = [rows]

        def killed(*given: Any, before: list[int] = before) -> Any:
            if not before[0]:
                raise KeyboardInterrupt
            before[0] -= 1
            return real(*given)

        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "append_once", killed)
            with pytest.raises(KeyboardInterrupt):
                found(federation)
        (model,) = models(federation)
    found(federation)
    found(federation)
    with Ledger(home(federation) / "ledger.sqlite", read_only=True) as ledger:
        rows_of = [(row.kind, row.body) for row in ledger.rows()]
    # The model's own row is last of those that it needs: with it they are complete.
    assert [kind for kind, _ in rows_of] == ["delivered", "model", "keys", "federation"]
    assert rows_of[1][1]["model"] == model.digest
    assert rows_of[0][1]["clients"] == list(model.clients)


def test_a_model_that_served_before_is_not_put_into_service_again(federation: Federation) -> None:
    start(federation, 1)
    found(federation)
    start(federation, 1)
    found(federation)
    start(federation, 1, from_scratch=True)  # the same samples and seeds: the same model
    with pytest.raises(RecordError, match="which served before and was replaced"):
        found(federation)
