from collections.abc import Callable
from pathlib import Path

import pytest

from harness.erasure import small
from harness.erasure.tampering import tamper
from secede.cli.commands import ledger as commands
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.ledger import Ledger
from secede.errors import TrustError


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home from which one client was erased."""
    home = small.make(tmp_path_factory.mktemp("founded"))
    small.erase(home, small.receive(home).id)
    return home


@pytest.fixture
def home(erased: Home, tmp_path: Path) -> Home:
    return small.copy(erased, tmp_path / "home")


def content(home: Home) -> list[bytes]:
    with Ledger(home.ledger, read_only=True) as ledger:
        connection = ledger.connection
        return [str(row).encode() for row in connection.execute("SELECT * FROM rows")]


CHANGES: dict[str, Callable[[Home], None]] = {
    "altered": lambda home: tamper(
        home.ledger, "UPDATE rows SET at = '2020-01-01T00:00:00Z' WHERE number = 2"
    ),
    "removed": lambda home: tamper(home.ledger, "DELETE FROM rows WHERE number = 4"),
    "cut": lambda home: tamper(home.ledger, "DELETE FROM rows WHERE number > 12"),
    "last one cut": lambda home: tamper(
        home.ledger, "DELETE FROM rows WHERE number = (SELECT max(number) FROM rows)"
    ),
    "emptied": lambda home: tamper(home.ledger, "DELETE FROM rows"),
    "deleted": lambda home: home.ledger.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_ledger_that_is_not_whole_is_not_appended_to(home: Home, change: str) -> None:
    entry = small.receive(home, "site-1")
    CHANGES[change](home)
    before = content(home) if home.ledger.exists() else []
    with pytest.raises(TrustError):
        small.erase(home, entry.id)
    assert content(home) == before
    assert small.way(home, entry.id) == ["received"]


@pytest.mark.parametrize("change", ["altered", "removed", "cut", "last one cut", "emptied"])
@pytest.mark.parametrize("by", ["home", "file"])
def test_verifying_a_ledger_in_its_home_finds_it_too(home: Home, change: str, by: str) -> None:
    path = home.path if by == "home" else home.ledger
    commands.verify(path, json=True)
    CHANGES[change](home)
    with pytest.raises(TrustError):
        commands.verify(path, json=True)


def test_a_cut_behind_the_journal_s_back_still_contradicts_the_receipts(home: Home) -> None:
    with Ledger(home.ledger, read_only=True) as ledger:
        early = next(row.head for row in ledger.rows() if row.number == 12)
    tamper(home.ledger, "DELETE FROM rows WHERE number > 12")
    with Journal(home.journal) as journal:
        journal.save_ledger_head(early)
    with pytest.raises(TrustError, match="its tail is missing"):
        small.receive(home, "site-1")
    with pytest.raises(TrustError, match="its tail is missing"):
        small.erase(home, 2)


@pytest.mark.parametrize("lost", [False, True])
def test_without_a_promoted_erasure_s_receipt_nothing_is_worked_on(home: Home, lost: bool) -> None:
    entry = small.receive(home, "site-1")
    (path,) = home.receipts.glob("*.json")
    if lost:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TrustError, match="missing or does not verify"):
        commands.verify(home.path)
    with pytest.raises(TrustError, match="missing or does not verify"):
        small.erase(home, entry.id)


def test_another_receipt_that_does_not_hold_is_said_and_not_used(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    stray = home.receipts / "stray.json"
    stray.write_bytes(b"{}")
    commands.verify(home.path)
    assert f"{stray}: not valid, and not compared" in capsys.readouterr().out


def test_the_journal_keeps_the_ledger_s_head_from_the_start(erased: Home, tmp_path: Path) -> None:
    home = small.make(tmp_path)
    with Journal(home.journal) as journal, Ledger(home.ledger) as ledger:
        assert journal.ledger_head() == ledger.head()
    with Journal(erased.journal) as journal, Ledger(erased.ledger) as ledger:
        assert journal.ledger_head() == ledger.head()


def test_a_clock_behind_the_records_and_a_home_open_to_others_are_told(home: Home) -> None:
    entry, lines = small.receive(home, "site-1"), list[str]()
    small.erase(home, entry.id, tell=lines.append)
    assert not [line for line in lines if "clock" in line or "chmod" in line]
    home.path.chmod(0o777)
    home.journal.chmod(0o666)
    small.erase(home, entry.id, now=small.later(days=-1), tell=lines.append)
    assert any("set it right" in line for line in lines)
    assert sum("chmod go-w" in line for line in lines) == 2
