from __future__ import annotations

import json
from pathlib import Path

import pytest

from secede.cli.commands.request import keygen
from secede.erasure.signing.keys import Keyring


def test_keygen_says_which_file_is_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keygen("north", tmp_path)
    told = capsys.readouterr().out
    assert "north.key  keep it secret" in told
    assert "north.pub  give it to the federation's server" in told
    assert (tmp_path / "north.key").read_text().splitlines()[1] not in told
    keygen("south", tmp_path, json=True)
    assert json.loads(capsys.readouterr().out).keys() == {"private", "public", "key_id"}
    assert list(Keyring.load(tmp_path)) == ["north", "south"]
