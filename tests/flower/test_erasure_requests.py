"""Who asks for an erasure, and what is held while it is prepared."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.flower.journals import home, told
from harness.flower.small import NOW, OPTIONS, Federation, strategy
from secede.erasure import new_request, sign_request
from secede.erasure.receipts.verify import countersign_receipt, verify_receipt
from secede.erasure.signing.keys import (
    Keyring,
    generate_key_pair,
    load_private_key,
    load_public_key,
)
from secede.errors import ConfigError, RecordError, RolledBackError, TrustError
from secede.flower import erasure, plan
from secede.flower.storage import register


def test_the_operator_cannot_countersign_as_the_leaver(federation: Federation) -> None:
    federation.train(2)
    outcome = federation.erase("name:site-1")
    assert outcome.receipt is not None
    here, signed = home(federation), outcome.receipt.read_bytes()
    keys = Keyring.load(here / "keys")
    assert list(keys) == ["server"]
    assert not list(here.rglob("*site-1*"))
    operator = federation.store.home.operator_key()
    both = countersign_receipt(signed, operator)
    with pytest.raises(TrustError):
        verify_receipt(both, keys, countersigned_by=["site-1"])
    assert operator.public_key.keyid != keys["server"].keyid
    assert any("operator" in limit for limit in told(outcome.receipt)["limits"])


def test_a_request_names_a_key_that_was_there_before_the_first_training(
    federation: Federation, tmp_path: Path
) -> None:
    here = home(federation)
    federation.store.home.make_server_key()  # as `secede flower init` does
    pinned = load_public_key(here / "keys" / "server.pub").keyid
    private, public = generate_key_pair(tmp_path / "site", "site-1")
    shutil.copy(public, here / "keys")
    federation.train(2)
    assert federation.store.identity == pinned
    model = federation.store.last_round()
    assert model is not None
    asked = new_request(
        federation="north",
        client="site-1",
        trigger="objection",
        model=model.model,
        server=pinned,
        now=NOW,
    )
    signed = sign_request(asked, load_private_key(private))
    outcome = federation.erase("name:site-1", request=signed, trigger=None)
    assert outcome.receipt is not None
    assert load_public_key(here / "keys" / "server.pub").keyid == pinned
    federation_part = told(outcome.receipt)["federation"]
    assert federation_part["server"] == pinned


def test_a_training_makes_the_key_before_it_waits_for_clients(federation: Federation) -> None:
    federation.store.start_training(3, given="0" * 64)
    assert load_public_key(home(federation) / "keys" / "server.pub").keyid


def test_the_receipt_says_what_flower_itself_may_keep(federation: Federation) -> None:
    federation.train(2)
    outcome = federation.erase("name:site-1")
    assert outcome.receipt is not None
    assert any("SuperLink" in limit for limit in told(outcome.receipt)["limits"])
    page = outcome.receipt.with_suffix(".html").read_text()
    assert "SuperLink" in page


def test_an_erasure_that_came_to_nothing_ends_the_run_with_an_error(
    federation: Federation,
) -> None:
    federation.train(2)
    outcome = federation.erase("name:site-1")
    assert outcome.check() is outcome
    with pytest.raises(RolledBackError, match="site-1 was not erased: rolled-back: no rung"):
        replace(outcome, state="rolled-back", reason="no rung").check()


def test_who_asked_is_still_known_when_it_goes_on(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    federation.train(2)
    with monkeypatch.context() as patched:
        patched.setattr(erasure, "run_erasure", killed)
        with pytest.raises(KeyboardInterrupt):
            federation.erase("name:site-1")
    outcome = federation.erase("name:site-1")
    assert (outcome.request, outcome.state) == (1, "promoted")
    assert outcome.receipt is not None
    assert any("operator" in limit for limit in told(outcome.receipt)["limits"])


def test_a_servers_key_outlives_the_loss_of_its_public_half(federation: Federation) -> None:
    federation.train(2)
    outcome = federation.erase("name:site-1")
    assert outcome.receipt is not None
    public = home(federation) / "keys" / "server.pub"
    before, private = public.read_bytes(), (home(federation) / "server.key").read_bytes()
    public.unlink()
    with federation.store.lock():
        register.register_federation(federation.store)
    assert public.read_bytes() == before
    assert (home(federation) / "server.key").read_bytes() == private
    verify_receipt(outcome.receipt.read_bytes(), Keyring.load(home(federation) / "keys"))


@pytest.mark.parametrize(
    "step", ["register.register_federation", "find_leaver", "_open_request", "FlowerBackend"]
)
def test_nobody_trains_between_what_an_erasure_reads_and_does(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    federation.train(2)
    owner, name = (register, "register_federation") if "." in step else (erasure, step)
    real, tried = getattr(owner, name), []

    def looked(*given: Any, **options: Any) -> Any:
        with pytest.raises(RecordError, match="is in use by"), federation.store.lock(0):
            pass
        tried.append(step)
        return real(*given, **options)

    monkeypatch.setattr(owner, name, looked)
    assert federation.erase("name:site-1").state == "promoted"
    if step != "_open_request":
        plan(federation.grid(), strategy(), federation.store, leaver="name:site-2", options=OPTIONS)
    assert len(tried) == (1 if step == "_open_request" else 2)


def test_a_folder_where_nothing_was_trained_stays_as_it_was(federation: Federation) -> None:
    with pytest.raises(ConfigError, match="holds no completed round"):
        federation.erase("name:site-1")
    assert not home(federation).exists()
