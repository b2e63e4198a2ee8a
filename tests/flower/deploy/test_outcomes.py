"""Of whose erasure is told: the client that the selector names, and nobody else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from flower.small import Federation
from secede.errors import ConfigError, RecordError
from secede.flower.deploy import outcomes


def test_a_selector_by_key_or_id_tells_of_its_own_client(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.train(2)
    federation.erase("name:site-1")
    federation.erase("name:site-2")
    home = tmp_path / "home"
    for number in (1, 2):
        key = hashlib.sha256(f"public key {number}".encode()).hexdigest()
        node = federation.sites[number].node
        for leaver in (f"key:{key}", f"node:{node}", f"name:site-{number}"):
            assert outcomes.verified(home, leaver).client == f"site-{number}"
            assert outcomes.already(home, leaver) == outcomes.verified(home, leaver)
    assert outcomes.already(home, "name:site-0") is None
    with pytest.raises(RecordError, match="knows of no request to erase name:site-0"):
        outcomes.verified(home, "name:site-0")
    with pytest.raises(ConfigError, match="matches 0 clients"):
        outcomes.verified(home, "key:" + "0" * 64)
