"""Records that are sound one by one and contradict each other: nothing is worked on.

Tests `erasure/workflow/model_consistency.py` too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.erasure import small
from harness.erasure.tampering import tamper
from secede import state as states
from secede.cli.commands import ledger as commands
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.model_registry import ModelRegistry
from secede.erasure.workflow import consistency
from secede.erasure.workflow import erase as workflow
from secede.errors import RecordError, SecedeError, TrustError


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Home]:
    """The home before and after one client was erased."""
    before = small.make(tmp_path_factory.mktemp("founded"))
    after = small.copy(before, tmp_path_factory.mktemp("erased") / "home")
    small.erase(after, small.receive(after).id)
    return before, after


@pytest.fixture
def backup(homes: tuple[Home, Home]) -> Home:
    return homes[0]


@pytest.fixture
def home(homes: tuple[Home, Home], tmp_path: Path) -> Home:
    return small.copy(homes[1], tmp_path / "home")


def restore(home: Home, backup: Home, *names: str) -> None:
    """Put single parts of an older home in their place."""
    for name in names:
        for old in home.path.glob(f"{name}-*"):  # a database's log
            old.unlink()
        target = home.path / name
        if target.is_dir():
            shutil.rmtree(target)
            shutil.copytree(backup.path / name, target)
        else:
            shutil.copyfile(backup.path / name, target)


def refused(home: Home, told: str) -> None:
    """Neither a check nor an erasure goes on; the request is written down all the same."""
    with pytest.raises(TrustError, match=told):
        commands.verify(home.path, json=True)
    with pytest.raises(TrustError, match=told):
        small.receive(home, "site-1")
    assert small.way(home, 2) == ["received"]
    with pytest.raises(TrustError, match=told):
        small.erase(home, 2)
    assert small.way(home, 2) == ["received"]


def test_a_home_whose_records_agree_says_so(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    commands.verify(home.path)
    assert "agree with it" in capsys.readouterr().out


def test_a_restored_registry_brings_nobody_back(home: Home, backup: Home) -> None:
    restore(home, backup, "models.sqlite", "models", "sites")
    refused(home, "the registry of models does not: one of them is outdated")


def test_a_restored_model_s_file_must_go(home: Home, backup: Home) -> None:
    restore(home, backup, "models")
    (old,) = (backup.path / "models").iterdir()
    shutil.copyfile(old, home.path / "models" / old.name)
    refused(home, "is there again")


EDITS: dict[str, tuple[str, Callable[[Home], str]]] = {
    "no erasure": ("DELETE FROM erased", lambda _: "the registry of models does not"),
    "nobody carried": ("DELETE FROM contributions", lambda _: "carries"),
    "one not carried": ("DELETE FROM contributions WHERE client = 'site-2'", lambda _: "'site-2'"),
    "in use again": (
        "UPDATE models SET status = 'superseded' WHERE status = 'retired'",
        lambda _: "is retired by the ledger",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_altered_registry_is_found(home: Home, edit: str) -> None:
    statement, told = EDITS[edit]
    tamper(home.registry, statement)
    refused(home, told(home))


def test_a_missing_journal_is_not_replaced(home: Home) -> None:
    for path in home.path.glob("journal.sqlite*"):
        path.unlink()
    for work in (
        lambda: small.receive(home, "site-1"),
        lambda: small.erase(home, 1),
        lambda: commands.verify(home.path, json=True),
    ):
        with pytest.raises(RecordError, match="is missing: restore"):
            work()
    assert not home.journal.exists()


def test_an_empty_journal_in_its_place_is_found(home: Home) -> None:
    for path in home.path.glob("journal.sqlite*"):
        path.unlink()
    with Journal(home.journal):
        pass
    with pytest.raises(TrustError, match="not in the journal"):
        small.receive(home, "site-1")


def test_a_ledger_that_lacks_an_erasure_of_the_registry_is_found(home: Home, backup: Home) -> None:
    for path in home.receipts.iterdir():
        path.unlink()
    restore(home, backup, "ledger.sqlite", "journal.sqlite")
    with pytest.raises(TrustError, match="the ledger has no request"):
        small.receive(home, "site-1")


@pytest.mark.parametrize("resumed", [False, True])
def test_a_transition_altered_in_the_journal_gets_no_second_row(
    backup: Home, tmp_path: Path, resumed: bool
) -> None:
    home = small.copy(backup, tmp_path / "home")
    entry = small.receive(home)

    def tell(line: str) -> None:
        if resumed and line.startswith("guarded"):
            raise KeyboardInterrupt

    if resumed:
        with pytest.raises(KeyboardInterrupt):
            small.erase(home, entry.id, tell=tell)
    else:
        small.erase(home, entry.id)
    tamper(
        home.journal,
        "UPDATE transitions SET details = replace(details, 'local-step', 'server-side') "
        "WHERE state = 'local-step'",
    )
    with Ledger(home.ledger) as ledger:
        before = ledger.head()
    with pytest.raises(TrustError, match="one of them was altered"):
        small.erase(home, entry.id)
    with pytest.raises(TrustError, match="one of them was altered"):
        commands.verify(home.path, json=True)
    with Ledger(home.ledger) as ledger:
        assert ledger.head() == before


def test_a_request_is_in_the_ledger_as_soon_as_it_is_accepted(backup: Home, tmp_path: Path) -> None:
    home = small.copy(backup, tmp_path / "home")
    data = small.ask(home)
    from secede.erasure.workflow import erase

    for _ in range(2):
        entry = erase.receive(home, data, small.NOW)
    with Ledger(home.ledger) as ledger, Journal(home.journal) as journal:
        assert [r.body["request"] for r in ledger.rows() if r.kind == "request"] == [entry.digest]
        assert journal.ledger_head() == ledger.head()


def test_the_registry_tells_its_erasures(home: Home) -> None:
    with ModelRegistry(home.registry) as registry:
        ((client, model, request),) = registry.erasures()
    assert (client, model) == ("site-0", small.serving(home))
    assert request == small.course(home).entry.digest


@pytest.fixture(scope="module")
def erased_twice(
    homes: tuple[Home, Home], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Home, Home]:
    """A home after its second erasure, and the one before it."""
    after = small.copy(homes[1], tmp_path_factory.mktemp("twice") / "home")
    small.erase(after, small.receive(after, "site-1").id)
    return after, homes[1]


def in_journal(statement: str) -> Callable[[Home], None]:
    return lambda home: tamper(home.journal, statement)


def in_registry(statement: str) -> Callable[[Home], None]:
    return lambda home: tamper(home.registry, statement)


def cut(home: Home, rows: int) -> None:
    """Cut the ledger's last rows, and set the journal's head back with it."""
    tamper(home.ledger, f"DELETE FROM rows WHERE number > (SELECT max(number) - {rows} FROM rows)")
    with Journal(home.journal) as journal, Ledger(home.ledger) as ledger:
        journal.save_ledger_head(ledger.head())


def swap_receipts(home: Home) -> None:
    one, two = (home.receipt_path(small.course(home, n).entry.digest) for n in (1, 2))
    one.write_bytes(two.read_bytes())


def alter_model(home: Home) -> None:
    state = small.model(home)
    name = next(iter(state))
    states.save({**state, name: state[name] + 1}, home.model_path(small.serving(home)))


def replace_first(pattern: str, content: bytes | None) -> Callable[[Home], None]:
    def change(home: Home) -> None:
        path = sorted(home.path.glob(pattern))[0]
        path.unlink()
        if content is not None:
            path.write_bytes(content)

    return change


ALTERED: dict[str, tuple[str, Callable[[Home], None]]] = {
    "ledger's last two rows cut": ("does not name", lambda home: cut(home, 2)),
    "receipt of another client": ("not the receipt|does not name", swap_receipts),
    "journal: client": (
        "the client of request 1",
        in_journal("UPDATE requests SET client = 'site-3' WHERE id = 1"),
    ),
    "journal: due": (
        "the due date of request 1",
        in_journal("UPDATE requests SET due = '2030-01-01T00:00:00Z' WHERE id = 1"),
    ),
    "journal: received": (
        "the journal on request 1",
        in_journal("UPDATE requests SET received = '2026-11-01T00:00:00Z' WHERE id = 1"),
    ),
    "journal: acknowledged": (
        "the journal on request 1",
        in_journal("UPDATE requests SET acknowledged = '2030-01-01T00:00:00Z' WHERE id = 1"),
    ),
    "journal: acknowledged by nobody": (
        "the journal on request 1",
        in_journal("UPDATE requests SET acknowledged = NULL WHERE id = 1"),
    ),
    "journal: status": (
        "the status of request 1",
        in_journal("UPDATE requests SET status = 'open' WHERE id = 1"),
    ),
    "journal: head": ("does not name the end", in_journal("DELETE FROM ledger")),
    "serving model superseded": (
        "serves by the ledger, none",
        in_registry("UPDATE models SET status = 'superseded' WHERE status = 'serving'"),
    ),
    "serving model retired": (
        "serves by the ledger, none",
        in_registry("UPDATE models SET status = 'retired' WHERE status = 'serving'"),
    ),
    "ghost among the carriers": (
        "'ghost', who had no part",
        in_registry("INSERT INTO contributions SELECT digest, 'ghost' FROM models"),
    ),
    "ghost in the serving model": (
        "'ghost', who had no part",
        in_registry(
            "INSERT INTO contributions SELECT digest, 'ghost' FROM models WHERE status = 'serving'"
        ),
    ),
    "runs renamed": ("another parent, run", in_registry("UPDATE models SET run = 'south'")),
    "rounds renumbered": ("or round", in_registry("UPDATE models SET round = 99")),
    "sketch deleted": ("fingerprint of", replace_first("sketches/*.json", None)),
    "sketch replaced": ("fingerprint of", replace_first("sketches/*.json", b"[]")),
    "sketch of an update replaced": (
        "fingerprint of update",
        replace_first("sketches/updates/*.json", b"[]"),
    ),
    "seed deleted": ("fingerprint of model", replace_first("sketches/seed", None)),
    "seed replaced": ("fingerprint of model", replace_first("sketches/seed", bytes(32))),
    "plan deleted": ("plans/.* missing", replace_first("plans/*.json", None)),
    "recipe altered": ("recipe.json", replace_first("recipe.json", b"{}")),
    "model's file altered": ("not the model that was registered", alter_model),
}


@pytest.mark.parametrize("alteration", ALTERED)
def test_what_is_altered_anywhere_is_found_before_any_work(
    erased_twice: tuple[Home, Home], tmp_path: Path, alteration: str
) -> None:
    told, change = ALTERED[alteration]
    home = small.copy(erased_twice[0], tmp_path / "home")
    commands.verify(home.path, json=True)
    asked = small.ask(home, "site-2")
    change(home)
    with pytest.raises(SecedeError, match=told):
        commands.verify(home.path, json=True)
    with pytest.raises(SecedeError, match=told):
        workflow.receive(home, asked, small.NOW)
    with Journal(home.journal) as journal:
        number = journal.entries()[-1].id
    with pytest.raises(SecedeError, match=told):
        small.erase(home, number)
    assert small.way(home, number) == ["received"]


def test_a_closed_request_gets_the_row_that_a_kill_left_out(
    erased_twice: tuple[Home, Home], tmp_path: Path
) -> None:
    home = small.copy(erased_twice[0], tmp_path / "home")
    with Ledger(home.ledger) as ledger:
        before = [row.body for row in ledger.rows()]
    cut(home, 1)
    commands.verify(home.path, json=True)
    small.receive(home, "site-2")
    with Ledger(home.ledger) as ledger:
        assert [row.body for row in ledger.rows()][: len(before)] == before


def test_what_another_process_writes_meanwhile_is_no_contradiction(
    backup: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = small.copy(backup, tmp_path / "home")
    entry, genuine = small.receive(home), Ledger.rows

    def rows_of_before(ledger: Ledger) -> Any:
        rows = list(genuine(ledger))
        monkeypatch.undo()
        small.erase(home, entry.id)
        return (row for row in rows)

    with (
        Journal(home.journal) as journal,
        Ledger(home.ledger) as ledger,
        ModelRegistry(home.registry) as registry,
    ):
        head = ledger.head()
        monkeypatch.setattr(Ledger, "verify", lambda *_: head)
        monkeypatch.setattr(Ledger, "rows", rows_of_before)
        assert consistency.check_home(home, journal, ledger, registry) == ledger.head()
    assert small.way(home)[-1] == "promoted"
