from __future__ import annotations

import multiprocessing
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from multiprocessing.queues import Queue
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.erasure.papers import NOW, REQUEST
from secede.erasure.storage.model_registry import Candidate, Model, ModelRegistry
from secede.errors import GuardError, RecordError, SecedeError, StorageError

LATER = NOW + timedelta(hours=1)
ZERO, ONE, TWO, THREE, FOUR = (digit * 64 for digit in "01234")


def candidate(
    digest: str, parent: str | None, *clients: str, run: str = "cardio", round: int = 1
) -> Candidate:
    return Candidate(digest=digest, parent=parent, run=run, round=round, clients=clients)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lineage.db"


@pytest.fixture
def lineage(path: Path) -> Iterator[ModelRegistry]:
    """Yield a registry with two promoted models: a and b trained the first, b and c the second."""
    with ModelRegistry(path) as lineage:
        lineage.promote(candidate(ONE, None, "a", "b"), NOW)
        lineage.promote(candidate(TWO, ONE, "b", "c", round=2), NOW)
        yield lineage


def erase(
    lineage: ModelRegistry, client: str = "a", parent: str = TWO, digest: str = THREE
) -> Model:
    made = candidate(digest, parent, "b", "c", round=3)
    return lineage.promote_erased(made, client=client, request=REQUEST, now=LATER)


def statuses(lineage: ModelRegistry) -> dict[str, str]:
    return {model.digest: model.status for model in lineage.models()}


def test_promotion_supersedes_the_parent(lineage: ModelRegistry) -> None:
    assert statuses(lineage) == {ONE: "superseded", TWO: "serving"}
    found = lineage.serving("cardio")
    assert found is not None
    assert (found.digest, found.parent, found.round) == (TWO, ONE, 2)
    assert found.clients == ("a", "b", "c")  # a by way of the parent
    assert lineage.serving("other") is None


def test_promoting_again_changes_nothing(lineage: ModelRegistry) -> None:
    before = lineage.models()
    assert lineage.promote(candidate(TWO, ONE, "b", "c", round=2), LATER) == before[1]
    assert lineage.models() == before
    with pytest.raises(RecordError, match="another parent, run or round"):
        lineage.promote(candidate(TWO, ONE, "b", round=7), LATER)


def test_a_parent_that_no_longer_serves_is_refused(lineage: ModelRegistry) -> None:
    for parent in (ONE, ZERO, None):
        with pytest.raises(RecordError, match="run 'cardio' serves model 222222222222…, not"):
            lineage.promote(candidate(THREE, parent, "b"), LATER)
    assert statuses(lineage) == {ONE: "superseded", TWO: "serving"}


def test_a_model_from_scratch_replaces_the_serving_one_and_is_not_of_it(
    lineage: ModelRegistry,
) -> None:
    with pytest.raises(
        RecordError, match="run 'cardio' serves model 222222222222…, not model 1111"
    ):
        lineage.promote(candidate(THREE, None, "b"), LATER, replaces=ONE)
    found = lineage.promote(candidate(THREE, None, "b"), LATER, replaces=TWO)
    assert (found.parent, found.clients) == (None, ("b",))
    assert statuses(lineage) == {ONE: "superseded", TWO: "superseded", THREE: "serving"}


def test_an_erasure_retires_every_model_that_carries_the_client(lineage: ModelRegistry) -> None:
    assert [model.digest for model in lineage.carriers("a")] == [ONE, TWO]
    made = erase(lineage)
    assert made.clients == ("b", "c")
    assert made.status == "serving"
    assert statuses(lineage) == {ONE: "retired", TWO: "retired", THREE: "serving"}
    assert lineage.carriers("a") == ()
    assert [model.digest for model in lineage.carriers("a", retired=True)] == [ONE, TWO]
    assert [model.digest for model in lineage.carriers("b")] == [THREE]
    assert lineage.erased_clients() == ("a",)


def test_models_without_the_client_are_only_superseded(path: Path) -> None:
    with ModelRegistry(path) as lineage:
        lineage.promote(candidate(ONE, None, "b"), NOW)
        lineage.promote(candidate(TWO, ONE, "a", "b"), NOW)
        erase(lineage)
        assert statuses(lineage) == {ONE: "superseded", TWO: "retired", THREE: "serving"}


def test_an_erasure_done_again_changes_nothing(lineage: ModelRegistry) -> None:
    first = erase(lineage)
    before = lineage.models()
    assert erase(lineage) == first
    assert lineage.models() == before
    with pytest.raises(RecordError, match="not by this erasure of 'b'"):
        erase(lineage, client="b")


def test_models_of_another_run_still_carry_the_client(lineage: ModelRegistry) -> None:
    lineage.promote(candidate(FOUR, None, "a", run="lung"), NOW)
    erase(lineage)
    assert [(model.digest, model.run) for model in lineage.carriers("a")] == [(FOUR, "lung")]


def test_old_updates_of_an_erased_client_are_blocked(lineage: ModelRegistry) -> None:
    lineage.check_update("a", TWO)
    erase(lineage)
    for base in (ONE, TWO, THREE, ZERO):
        with pytest.raises(GuardError, match="'a' was erased at 2026-11-15T13:00:00Z"):
            lineage.check_update("a", base)
    lineage.check_update("b", THREE)


def test_updates_from_a_retired_or_unknown_model_are_blocked(lineage: ModelRegistry) -> None:
    lineage.check_update("b", ONE)  # superseded: late, but it carries nobody who left
    erase(lineage)
    with pytest.raises(GuardError, match="model 222222222222…, which is retired"):
        lineage.check_update("b", TWO)
    with pytest.raises(GuardError, match="not in the registry"):
        lineage.check_update("b", ZERO)


def test_a_model_that_an_erased_client_trained_is_not_promoted(lineage: ModelRegistry) -> None:
    erase(lineage)
    with pytest.raises(GuardError, match="'a' was erased"):
        lineage.promote(candidate(FOUR, THREE, "a", "b"), LATER)
    assert lineage.promote(candidate(FOUR, THREE, "d"), LATER).clients == ("b", "c", "d")


def test_an_erasure_that_makes_no_sense_is_refused(lineage: ModelRegistry) -> None:
    before = lineage.models()
    with pytest.raises(RecordError, match="does not carry 'd'"):
        erase(lineage, client="d")
    with pytest.raises(RecordError, match="'b' took part"):
        erase(lineage, client="b")
    with pytest.raises(RecordError, match="needs the parent"):
        lineage.promote_erased(candidate(FOUR, None), client="a", request=REQUEST, now=NOW)
    with pytest.raises(RecordError, match="not a name or digest"):
        erase(lineage, client="a b")
    with pytest.raises(RecordError, match="serves"):
        erase(lineage, parent=ONE)
    assert lineage.models() == before
    assert lineage.erased_clients() == ()


def test_a_retired_model_stays_retired(lineage: ModelRegistry, path: Path) -> None:
    erase(lineage)
    assert lineage.models()[1].status == "retired"
    assert lineage.models()[1].changed == "2026-11-15T13:00:00Z"
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="stays retired"),
    ):
        connection.execute("UPDATE models SET status = 'superseded' WHERE status = 'retired'")


def _dies_in_the_middle(path: Path) -> None:
    with ModelRegistry(path) as lineage:
        connection = lineage.connection
        # Kill the process at the very last write of the transaction.
        connection.create_function("die", 0, lambda: os.kill(os.getpid(), 9))
        connection.execute(
            "CREATE TEMP TRIGGER dies AFTER INSERT ON erased BEGIN SELECT die(); END"
        )
        erase(lineage)


def test_a_kill_during_promotion_leaves_the_old_model_serving(
    lineage: ModelRegistry, path: Path
) -> None:
    lineage.close()
    process = multiprocessing.get_context("fork").Process(target=_dies_in_the_middle, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -9
    with ModelRegistry(path) as again:
        assert statuses(again) == {ONE: "superseded", TWO: "serving"}
        assert again.erased_clients() == ()
        erase(again)
        assert statuses(again)[THREE] == "serving"


def _promote(path: Path, digest: str, told: Queue[str]) -> None:
    with ModelRegistry(path) as lineage:
        try:
            told.put(lineage.promote(candidate(digest, TWO, "b"), LATER).digest)
        except RecordError:
            told.put("refused")


def test_of_two_promotions_at_once_one_wins(lineage: ModelRegistry, path: Path) -> None:
    context = multiprocessing.get_context("fork")
    told: Queue[str] = context.Queue()
    processes = [context.Process(target=_promote, args=(path, d, told)) for d in (THREE, FOUR)]
    for process in processes:
        process.start()
    answers = sorted(told.get(timeout=30) for _ in processes)
    for process in processes:
        process.join()
    assert answers[1] == "refused"
    assert answers[0] in (THREE, FOUR)
    assert sorted(statuses(lineage).values()) == ["serving", "superseded", "superseded"]


def test_full_disks_and_missing_files_are_told(lineage: ModelRegistry, tmp_path: Path) -> None:
    lineage.connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StorageError, match="readonly"):
        lineage.promote(candidate(FOUR, TWO), NOW)
    with pytest.raises(RecordError, match="no such registry of models"):
        ModelRegistry(tmp_path / "missing.db", read_only=True)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_spoilt_file_raises_nothing_but_our_errors(path: Path, data: st.DataObject) -> None:
    if not path.exists():
        with ModelRegistry(path) as lineage:
            lineage.promote(candidate(ONE, None, "a", "b"), NOW)
    whole = path.read_bytes()
    spoilt = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        spoilt[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(spoilt[: data.draw(st.integers(0, len(whole)) | st.just(len(whole)))]))
    try:
        with ModelRegistry(path, read_only=True) as lineage:
            lineage.models()
            lineage.carriers("a")
            lineage.check_update("a", ONE)
    except SecedeError:
        pass
    finally:
        path.write_bytes(whole)
