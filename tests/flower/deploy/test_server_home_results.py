"""Of whose erasure is told: the client that the selector names, and nobody else."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.flower.small import NOW, OPTIONS, Federation
from secede.erasure.documents.request import new_request, sign_request
from secede.erasure.receipts.verify import countersign_receipt
from secede.erasure.signing.keys import generate_key_pair, load_private_key
from secede.erasure.storage.home import Home
from secede.errors import ConfigError, LossError, RecordError, RolledBackError
from secede.flower.deploy import server_home


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
            result = server_home.verified_result(home, leaver)
            assert result.client == f"site-{number}"
            assert server_home.earlier_result(home, leaver) == result
    assert server_home.earlier_result(home, "name:site-0") is None
    with pytest.raises(RecordError, match="has no request to erase name:site-0"):
        server_home.verified_result(home, "name:site-0")
    with pytest.raises(ConfigError, match="matches 0 clients"):
        server_home.verified_result(home, "key:" + "0" * 64)


def test_what_an_auditor_signed_too_still_holds(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.train(2)
    federation.erase("name:site-1")
    home = Home(tmp_path / "home")
    key, _ = generate_key_pair(home.keys / "auditors", "office")
    before = server_home.verified_result(home.path, "name:site-1")
    path = Path(before.receipt)
    path.write_bytes(countersign_receipt(path.read_bytes(), load_private_key(key)))
    assert server_home.earlier_result(home.path, "name:site-1") == before
    assert server_home.verified_result(home.path, "name:site-1") == before


def test_a_loss_by_retraining_waits_for_a_decision_in_a_later_run(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.train(2)
    home = federation.store.path
    strict = replace(OPTIONS, margins=OPTIONS.margins.model_copy(update={"min_samples": 10**6}))
    with pytest.raises(LossError, match=r"`secede flower erase`.* with --accept-loss REASON"):
        federation.erase("name:site-1", options=strict)
    with pytest.raises(LossError, match="retraining without site-1 is not shown to keep"):
        server_home.verified_result(home, "name:site-1")
    accepting = replace(OPTIONS, accept_loss="objection upheld")
    assert federation.erase("name:site-1", options=accepting).rung == "retraining"
    assert server_home.verified_result(home, "name:site-1").client == "site-1"


def test_a_request_that_was_refused_later_hides_no_erasure(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.train(2)
    first, home = federation.erase("name:site-1"), Home(tmp_path / "home")
    key, public = generate_key_pair(tmp_path / "theirs", "site-1")
    shutil.copy(public, home.keys)
    made = new_request(
        federation=federation.store.name,
        client="site-1",
        trigger="other",
        model=str(federation.store.serving_digest()),
        now=NOW,
    )
    signed = sign_request(made, load_private_key(key))
    assert federation.erase("name:site-1", request=signed).state == "refused"
    with pytest.raises(RolledBackError, match="was not erased: refused"):
        server_home.verified_result(home.path, "name:site-1")
    found = server_home.earlier_result(home.path, "name:site-1")
    assert found is not None
    assert found.receipt == str(first.receipt)
    assert federation.erase("name:site-1") == first  # and it is not asked for a third time
