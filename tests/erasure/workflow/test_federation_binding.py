"""federation.json and the public keys are those that the ledger names, or nothing is worked on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.erasure import small
from harness.erasure.tampering import tamper
from secede.cli.commands import federation as federations
from secede.cli.commands import ledger as commands
from secede.erasure.canonical_json import digest
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.signing.keys import generate_key_pair, load_private_key
from secede.erasure.storage.home import Home
from secede.erasure.workflow import erase as workflow
from secede.errors import TrustError
from secede.simulation.backend import SimulatedBackend


def edit(home: Home, change: Callable[[list[dict[str, Any]]], None]) -> None:
    path = home.path / "federation.json"
    content = json.loads(path.read_bytes())
    change(content["clients"])
    path.write_text(json.dumps(content))


def swap_numbers(clients: list[dict[str, Any]]) -> None:
    clients[0]["number"], clients[1]["number"] = clients[1]["number"], clients[0]["number"]


def swap_commitments(clients: list[dict[str, Any]]) -> None:
    one, two = clients[0]["scope"], clients[1]["scope"]
    one["commitment"], two["commitment"] = two["commitment"], one["commitment"]


def set_weight(clients: list[dict[str, Any]]) -> None:
    clients[2]["scope"]["weight"] = 0.9


def set_samples(clients: list[dict[str, Any]]) -> None:
    clients[2]["scope"]["commitment"]["samples"] += 1


def remove_last(clients: list[dict[str, Any]]) -> None:
    clients.pop()


def replace_key(home: Home, name: str = "site-0") -> None:
    generate_key_pair(home.path / "forged", name)
    shutil.copyfile(home.path / "forged" / f"{name}.pub", home.keys / f"{name}.pub")


def swap_keys(home: Home) -> None:
    one, two = home.keys / "site-0.pub", home.keys / "site-1.pub"
    one_key, two_key = one.read_bytes(), two.read_bytes()
    one.write_bytes(two_key)
    two.write_bytes(one_key)


CHANGES: dict[str, Callable[[Home], None]] = {
    "numbers": lambda home: edit(home, swap_numbers),
    "commitments": lambda home: edit(home, swap_commitments),
    "weight": lambda home: edit(home, set_weight),
    "samples": lambda home: edit(home, set_samples),
    "a client left out": lambda home: edit(home, remove_last),
    "key replaced": replace_key,
    "key of another": swap_keys,
    "key deleted": lambda home: (home.keys / "site-3.pub").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_the_ledger_does_not_name_stops_all_work(home: Home, change: str) -> None:
    entry = small.receive(home)
    CHANGES[change](home)
    told = "the ledger names"
    with pytest.raises(TrustError, match=told):
        commands.verify(home.path, json=True)
    with pytest.raises(TrustError):
        small.erase(home, entry.id)
    assert small.way(home, entry.id) == ["received"]


def test_the_simulator_compares_samples_with_commitments(home: Home) -> None:
    edit(home, swap_numbers)
    assert workflow.register_change(home, small.NOW)
    with pytest.raises(TrustError, match=r"'site-0' has number 1 .* not those it committed to"):
        SimulatedBackend(home)


def test_an_own_change_is_registered_once(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    edit(home, set_weight)
    federations.register(home.path)
    assert "entered into the ledger" in capsys.readouterr().out
    federations.register(home.path, json=True)
    assert json.loads(capsys.readouterr().out)["changed"] is False
    commands.verify(home.path, json=True)
    small.erase(home, small.receive(home).id)


def test_a_request_signed_with_a_key_that_was_put_in_place_is_refused(home: Home) -> None:
    genuine = (home.keys / "site-0.pub").read_bytes()
    replace_key(home)
    shutil.copyfile(home.path / "forged" / "site-0.key", home.path / "sites" / "site-0.key")
    with pytest.raises(TrustError, match="signed with a key"):
        small.receive(home)
    (home.keys / "site-0.pub").write_bytes(genuine)
    with pytest.raises(TrustError, match="signed with a key"):
        small.erase(home, 1)


def test_a_key_id_altered_in_the_journal_is_found(home: Home) -> None:
    entry = small.receive(home)
    one, two = (home.key_ids()[name] for name in ("site-0", "site-1"))
    tamper(
        home.journal,
        f"UPDATE requests SET envelope = CAST(replace(envelope, '{one}', '{two}') AS BLOB)",
    )
    with pytest.raises(TrustError, match="contradicts the journal"):
        small.erase(home, entry.id)


def test_receipt_and_ledger_name_federation_and_keys(home: Home) -> None:
    outcome = small.erase(home, small.receive(home).id)
    told = small.told(home)
    own = load_private_key(home.path / "sites" / "site-0.key").public_key.keyid
    assert told["request"]["key"] == own
    assert told["federation"] == {
        "digest": home.federation.digest(),
        "server": home.key_ids()["server"],
        "keys": digest(home.key_ids()),
        "controller": None,
        "contact": None,
    }
    assert outcome.receipt is not None
    verify_receipt(outcome.receipt.read_bytes(), home.keyring(), ledger=home.ledger)


def test_a_first_key_of_a_name_is_entered_by_itself(home: Home, tmp_path: Path) -> None:
    generate_key_pair(tmp_path, "site-9")
    shutil.copyfile(tmp_path / "site-9.pub", home.keys / "site-9.pub")
    commands.verify(home.path, json=True)
    small.receive(home)
    names = [name for row in small.rows(home, "keys") for name in row.body["keys"]]
    assert names.count("site-9") == 1
