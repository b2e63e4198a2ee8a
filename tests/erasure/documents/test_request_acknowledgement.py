from __future__ import annotations

from pathlib import Path

import pytest

from harness.clock import stop_clock
from harness.erasure import small
from harness.erasure.small import NOW, later
from secede.cli.commands import requests as commands
from secede.cli.commands.verify import verify
from secede.erasure.documents.ledger_rows import ExtendedBody
from secede.erasure.documents.request import verify_acknowledgement
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.ledger import Ledger
from secede.erasure.workflow import erase
from secede.errors import ConfigError, TrustError
from secede.simulation.backend import SimulatedBackend


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return small.make(tmp_path_factory.mktemp("founded"))


@pytest.fixture
def home(founded: Home, tmp_path: Path) -> Home:
    return small.copy(founded, tmp_path / "home")


def test_a_client_gets_the_server_s_signed_word(home: Home) -> None:
    entry = small.receive(home)
    data = home.acknowledgement_path(entry.digest).read_bytes()
    told = verify_acknowledgement(data, home.keyring())
    assert (told.request, told.client, told.federation) == (entry.digest, "site-0", "north")
    assert (told.received, told.due) == ("2026-11-15T12:00:00Z", "2026-12-15T12:00:00Z")
    assert told.extended_to is None
    assert entry.acknowledged == NOW


def test_the_same_request_again_changes_nothing(home: Home) -> None:
    data = small.ask(home)
    first = erase.receive(home, data, NOW)
    path = home.acknowledgement_path(first.digest)
    before = path.stat().st_mtime_ns
    assert erase.receive(home, data, later(days=1)) == first
    assert path.stat().st_mtime_ns == before


def test_nothing_is_acknowledged_that_could_not_be_signed(home: Home) -> None:
    (home.path / "server.key").unlink()
    with pytest.raises(ConfigError, match=r"server\.key"):
        small.receive(home)
    with Journal(home.journal, read_only=True) as journal:
        (listed,) = journal.entries()
    assert listed.acknowledged is None


def test_every_flipped_byte_and_every_other_signer_is_refused(home: Home) -> None:
    entry = small.receive(home)
    data, keyring = home.acknowledgement_path(entry.digest).read_bytes(), home.keyring()
    for place in range(len(data)):
        spoilt = bytearray(data)
        spoilt[place] ^= 0x01
        with pytest.raises(TrustError):
            verify_acknowledgement(bytes(spoilt), keyring)
    with pytest.raises(TrustError):
        verify_acknowledgement(data, keyring, server="site-1")
    with pytest.raises(TrustError, match="no public key"):
        verify_acknowledgement(data, {})


def test_a_date_that_is_put_off_is_signed_with_its_reason_and_is_in_the_ledger(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = small.receive(home)
    stop_clock(monkeypatch, commands, NOW)
    for months in (1, 2):
        commands.extend(entry.id, home.path, "many at once", months, json=True)
    path = home.acknowledgement_path(entry.digest)
    told = verify_acknowledgement(path.read_bytes(), home.keyring())
    assert (told.extended_to, told.reason) == ("2027-02-15T12:00:00Z", "many at once")
    with Ledger(home.ledger) as ledger:
        rows = [row.body["extended_to"] for row in ledger.rows() if row.kind == "extended"]
    assert rows == ["2027-01-15T12:00:00Z", "2027-02-15T12:00:00Z"]
    outcome = small.erase(home, entry.id)
    assert outcome.receipt is not None
    verify_receipt(outcome.receipt.read_bytes(), home.keyring(), ledger=home.ledger)
    capsys.readouterr()
    verify([path], home.keys)
    assert "extended   to 2027-02-15: many at once" in capsys.readouterr().out


def test_an_extension_that_the_ledger_lacks_is_caught_up_with(home: Home) -> None:
    entry = small.receive(home)

    def tell(line: str) -> None:
        if line.startswith("guarded"):  # somebody is killed between journal and ledger meanwhile
            with Journal(home.journal) as journal:
                journal.extend(entry.id, 1, "many at once", NOW)

    outcome = small.erase(home, entry.id, tell=tell)
    assert outcome.receipt is not None
    verify_receipt(outcome.receipt.read_bytes(), home.keyring(), ledger=home.ledger)


def test_a_later_date_that_the_journal_does_not_know_is_found(home: Home) -> None:
    entry = small.receive(home)
    with Journal(home.journal) as journal, Ledger(home.ledger) as ledger:
        body = ExtendedBody(request=entry.digest, extended_to="2027-01-15T12:00:00Z")
        ledger.append(body, NOW)
        journal.save_ledger_head(ledger.head())
    with pytest.raises(TrustError, match="extends request 1, the journal does not"):
        small.erase(home, entry.id)


def test_a_request_that_is_closed_ends_in_a_signed_notice(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = small.receive(home)
    erase.close_request(
        home,
        SimulatedBackend(home),
        entry.id,
        "withdrawn",
        key=home.server_key(),
        clock=lambda: NOW,
    )
    path = home.acknowledgement_path(entry.digest)
    told = verify_acknowledgement(path.read_bytes(), home.keyring())
    assert told.ended is not None
    assert (told.ended.state, told.ended.reason) == ("refused", "withdrawn")
    assert "judicial remedy" in told.ended.remedies
    verify([path], home.keys)
    assert "ended      2026-11-15, refused: withdrawn" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="is an acknowledgement"):
        verify([path], home.keys, ledger=home.ledger)


def test_a_roll_back_is_told_to_the_client_even_after_a_kill(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = SimulatedBackend(home)
    monkeypatch.setattr(ground, "training", lambda: {"x" * 65: 1})  # no receipt can be made of it
    entry = small.receive(home)
    path = home.acknowledgement_path(entry.digest)
    before = path.read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(erase, "_notify", killed)
        with pytest.raises(KeyboardInterrupt):
            small.erase(home, entry.id, ground=ground)
    assert path.read_bytes() == before
    assert small.erase(home, entry.id, ground=ground).state == "rolled-back"
    told = verify_acknowledgement(path.read_bytes(), home.keyring())
    assert told.ended is not None
    assert told.ended.state == "rolled-back"


def test_an_erasure_ends_in_a_receipt_and_no_notice(home: Home) -> None:
    entry = small.receive(home)
    before = home.acknowledgement_path(entry.digest).read_bytes()
    small.erase(home, entry.id)
    assert home.acknowledgement_path(entry.digest).read_bytes() == before
