from __future__ import annotations

from pathlib import Path

import pytest

from secede.erasure.storage.home import Home
from secede.errors import ConfigError


def test_the_folder_of_public_keys_holds_no_private_one(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make_server_key()
    assert [path.name for path in home.keys.iterdir()] == ["server.pub"]
    assert (home.path / "server.key").stat().st_mode & 0o777 == 0o600
    before = home.server_key()
    home.make_server_key()
    assert home.server_key().public_key.keyid == before.public_key.keyid


def test_half_a_pair_that_a_kill_left_is_made_anew(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make_server_key()
    (home.keys / "server.pub").unlink()
    home.make_server_key()
    assert home.server_key().public_key.keyid == home.keyring()["server"].keyid


def test_a_private_key_among_the_public_ones_is_not_used_there(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make_server_key()
    (home.path / "server.key").rename(home.keys / "server.key")
    with pytest.raises(ConfigError, match="lies among public keys: move it to"):
        home.server_key()
