"""Records that are sound one by one and contradict each other: nothing is worked on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.erasure import small
from harness.erasure.tampering import tamper
from secede.cli.commands import ledger as commands
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.model_registry import ModelRegistry
from secede.errors import RecordError, TrustError


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
