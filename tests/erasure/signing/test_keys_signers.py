from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from secede.erasure.signing.keys import Signers, generate_key_pair
from secede.errors import ConfigError


def test_auditors_are_those_in_their_folder_and_those_named(tmp_path: Path) -> None:
    generate_key_pair(tmp_path, "server")
    assert list(Signers.load(tmp_path).auditors) == []
    generate_key_pair(tmp_path / "auditors", "office")
    generate_key_pair(tmp_path / "elsewhere", "board")
    found = Signers.load(tmp_path, [tmp_path / "elsewhere" / "board.pub"])
    assert list(found.keys) == ["server"]
    assert sorted(found.auditors) == ["board", "office"]


def test_nobody_is_both_a_client_and_an_auditor(tmp_path: Path) -> None:
    generate_key_pair(tmp_path, "site-1")
    generate_key_pair(tmp_path / "auditors", "site-1")
    with pytest.raises(ConfigError, match="'site-1' is a client or the server"):
        Signers.load(tmp_path)
    (tmp_path / "auditors" / "site-1.pub").unlink()
    shutil.copy(tmp_path / "site-1.pub", tmp_path / "auditors" / "other.pub")
    with pytest.raises(ConfigError, match="same public key"):
        Signers.load(tmp_path)


def test_a_named_auditor_has_a_public_key_of_its_own_name(tmp_path: Path) -> None:
    generate_key_pair(tmp_path, "server")
    generate_key_pair(tmp_path / "auditors", "office")
    for path in (tmp_path / "auditors" / "office.pub", tmp_path / "server.key"):
        with pytest.raises(ConfigError, match="of a new auditor"):
            Signers.load(tmp_path, [path])
