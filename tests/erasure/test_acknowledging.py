from __future__ import annotations

from pathlib import Path

import pytest

from erasure import small
from erasure.small import NOW, later
from secede.erasure import acknowledging, workflow
from secede.erasure.home import Home
from secede.erasure.journal import Journal
from secede.errors import ConfigError, TrustError


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return small.make(tmp_path_factory.mktemp("founded"))


@pytest.fixture
def home(founded: Home, tmp_path: Path) -> Home:
    return small.copy(founded, tmp_path / "home")


def test_a_client_gets_the_server_s_signed_word(home: Home) -> None:
    entry = small.receive(home)
    data = home.acknowledgement(entry.digest).read_bytes()
    told = acknowledging.verify(data, home.keyring())
    assert (told.request, told.client, told.federation) == (entry.digest, "site-0", "north")
    assert (told.received, told.due) == ("2026-11-15T12:00:00Z", "2026-12-15T12:00:00Z")
    assert told.extended_to is None
    assert entry.acknowledged == NOW


def test_the_same_request_again_changes_nothing(home: Home) -> None:
    data = small.ask(home)
    first = workflow.receive(home, data, NOW)
    path = home.acknowledgement(first.digest)
    before = path.stat().st_mtime_ns
    assert workflow.receive(home, data, later(days=1)) == first
    assert path.stat().st_mtime_ns == before


def test_nothing_is_acknowledged_that_could_not_be_signed(home: Home) -> None:
    (home.keys / "server.key").unlink()
    with pytest.raises(ConfigError, match=r"server\.key"):
        small.receive(home)
    with Journal(home.journal, read_only=True) as journal:
        (listed,) = journal.requests(NOW)
    assert listed.entry.acknowledged is None


def test_every_flipped_byte_and_every_other_signer_is_refused(home: Home) -> None:
    entry = small.receive(home)
    data, keyring = home.acknowledgement(entry.digest).read_bytes(), home.keyring()
    for place in range(len(data)):
        spoilt = bytearray(data)
        spoilt[place] ^= 0x01
        with pytest.raises(TrustError):
            acknowledging.verify(bytes(spoilt), keyring)
    with pytest.raises(TrustError):
        acknowledging.verify(data, keyring, server="site-1")
    with pytest.raises(TrustError, match="no public key"):
        acknowledging.verify(data, {})
