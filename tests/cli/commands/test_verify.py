from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from harness.erasure import papers, small
from secede import state as states
from secede.cli.commands.verify import _forgotten, countersign, verify
from secede.erasure.documents.request import new_request, sign_request
from secede.erasure.receipts import verify as receipts
from secede.erasure.receipts.verify import countersign_receipt, verify_receipt
from secede.erasure.signing.keys import Keyring, PrivateKey, generate_key_pair, load_private_key
from secede.erasure.storage.home import Home
from secede.erasure.workflow import erase as workflow
from secede.errors import ConfigError, SecedeError, StateError, TrustError

Capture = pytest.CaptureFixture[str]


def test_a_receipt_is_told_in_plain_words(folder: Path, capsys: Capture) -> None:
    verify(
        [folder / "receipt.json"],
        folder / "keys",
        model=folder / "model.safetensors",
        ledger=folder / "ledger.db",
    )
    said = capsys.readouterr().out
    assert said.startswith(f"{folder / 'receipt.json'}: signature valid\n")
    assert re.search("^signed by +server$", said, re.MULTILINE)
    assert re.search("^countersigned by +clinic-north$", said, re.MULTILINE)
    assert re.search("^key id +[0-9a-f]{64}$", said, re.MULTILINE)
    assert re.search("^model +matches$", said, re.MULTILINE)
    assert re.search("^ledger +valid up to row 14; agrees with the receipt$", said, re.MULTILINE)
    assert re.search("^forgotten +no trace found: The canaries showed", said, re.MULTILINE)
    assert "evidence, not proof" in said
    assert max(map(len, said.splitlines())) <= 320


def test_what_was_not_compared_is_said(folder: Path, capsys: Capture) -> None:
    verify([folder / "receipt.json"], folder / "keys")
    said = capsys.readouterr().out
    assert re.search("^model +not compared; give --model FILE$", said, re.MULTILINE)
    assert re.search("^ledger +not compared; give --ledger FILE$", said, re.MULTILINE)


def test_a_receipt_as_json_and_its_page(folder: Path, capsys: Capture) -> None:
    path = folder / "receipt.json"
    verify([path], folder / "keys", ledger=folder / "ledger.jsonl", page=True, json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["verified"] is True
    assert told["countersigned_by"] == [papers.LEAVER]
    assert told["model_checked"] is False
    assert told["ledger"]["number"] == 14
    assert told["statement"]["predicate"]["request"]["client"] == papers.LEAVER
    assert Path(told["page"]) == folder / "receipt.html"
    assert "Erasure of <b>clinic-north</b>" in (folder / "receipt.html").read_text()


def test_an_altered_receipt_writes_no_page_and_says_nothing_good(
    folder: Path, capsys: Capture
) -> None:
    path = folder / "receipt.json"
    path.write_bytes(path.read_bytes().replace(b"A", b"B", 1))
    with pytest.raises(TrustError):
        verify([path], folder / "keys", page=True)
    assert capsys.readouterr().out == ""
    assert not (folder / "receipt.html").exists()


def test_another_or_a_broken_model_is_refused(folder: Path) -> None:
    other = folder / "other.safetensors"
    states.save({"w": torch.tensor([1.0, 2.5])}, other)
    with pytest.raises(TrustError, match="it is another model, or it was altered"):
        verify([folder / "receipt.json"], folder / "keys", model=other)
    other.write_bytes(b"nothing")
    with pytest.raises(StateError, match="not a readable safetensors file"):
        verify([folder / "receipt.json"], folder / "keys", model=other)


@pytest.mark.parametrize("missing", ["receipt.json", "keys", "ledger.db"])
def test_missing_files_are_named(folder: Path, missing: str) -> None:
    paths = {name: folder / name for name in ("receipt.json", "keys", "ledger.db")}
    paths[missing] = folder / "nowhere"
    with pytest.raises(SecedeError, match="nowhere"):
        verify([paths["receipt.json"]], paths["keys"], ledger=paths["ledger.db"])


def test_verifying_needs_no_torch_and_no_private_key(folder: Path) -> None:
    for private in folder.glob("*.key"):
        private.unlink()
    program = (
        "import sys; from pathlib import Path; from secede.cli.commands.verify import verify\n"
        "folder = Path(sys.argv[1])\n"
        "verify([folder / 'receipt.json'], folder / 'keys', ledger=folder / 'ledger.db',\n"
        "       page=True, json=True)\n"
        "sys.exit('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(folder)], stdout=subprocess.DEVNULL)
    assert ended.returncode == 0


def test_an_auditor_countersigns_and_the_page_says_so(folder: Path, capsys: Capture) -> None:
    key, _ = generate_key_pair(folder / "keys" / "auditors", "office")
    countersign([folder / "receipt.json"], key, folder / "keys")
    assert "countersigned by clinic-north, office" in capsys.readouterr().out
    assert "countersigned by <b>clinic-north, office</b>" in (folder / "receipt.html").read_text()
    verify(
        [folder / "receipt.json"],
        folder / "keys",
        countersigned_by=["office", papers.LEAVER],
        ledger=folder / "ledger.db",
        json=True,
    )
    with pytest.raises(TrustError, match="not countersigned by board"):
        verify([folder / "receipt.json"], folder / "keys", countersigned_by=["board"], json=True)


@pytest.mark.parametrize("known", [False, True])
def test_nobody_else_can_countersign_and_nothing_is_written(folder: Path, known: bool) -> None:
    key, _ = generate_key_pair(folder / ("keys" if known else "elsewhere"), "clinic-south")
    before = (folder / "receipt.json").read_bytes()
    own = "is the key of 'clinic-south', who is neither 'clinic-north'.*nothing is signed"
    with pytest.raises(TrustError, match=own if known else "unknown key"):
        countersign([folder / "receipt.json"], key, folder / "keys")
    assert (folder / "receipt.json").read_bytes() == before
    assert not (folder / "receipt.html").exists()


def test_a_request_given_as_a_receipt_is_named_and_what_it_is(folder: Path) -> None:
    path = folder / "request.json"
    asked = new_request(
        federation="north",
        client=papers.LEAVER,
        trigger="objection",
        model="1" * 64,
        now=papers.NOW,
    )
    key = folder / f"{papers.LEAVER}.key"
    path.write_bytes(sign_request(asked, load_private_key(key)))
    words = r"request\.json: this is a request, not a receipt"
    with pytest.raises(TrustError, match=words):
        verify([path], folder / "keys")
    with pytest.raises(TrustError, match=words):
        countersign([path], key, folder / "keys")


def test_two_who_countersign_at_once_both_stand_in_the_receipt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [
        generate_key_pair(folder / "keys" / "auditors", name)[0] for name in ("board", "office")
    ]

    def slowly(data: bytes, key: PrivateKey) -> bytes:
        time.sleep(0.3)
        return countersign_receipt(data, key)

    monkeypatch.setattr(receipts, "countersign_receipt", slowly)
    with ThreadPoolExecutor(2) as pool:
        path = folder / "receipt.json"
        list(pool.map(lambda key: countersign([path], key, folder / "keys"), both))
    verify(
        [folder / "receipt.json"],
        folder / "keys",
        countersigned_by=["board", "office", papers.LEAVER],
        json=True,
    )


def test_what_holds_by_definition_is_not_called_measured(folder: Path, capsys: Capture) -> None:
    told = verify_receipt((folder / "receipt.json").read_bytes(), Keyring.load(folder / "keys"))
    predicate = told.statement.predicate
    assert _forgotten(predicate).startswith("no trace found: The canaries showed before")
    changes = {"forgotten": "by-construction"}
    answers = predicate.verification.model_copy(update=changes)
    retrained = predicate.model_copy(update={"verification": answers})
    assert _forgotten(retrained).startswith("by construction: trained from scratch")


def test_a_model_that_is_a_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        verify([folder / "receipt.json"], folder / "keys", model=folder / "pipe", json=True)


def test_a_receipt_must_be_about_whom_and_what_is_said(folder: Path) -> None:
    path, keys = [folder / "receipt.json"], folder / "keys"
    verify(path, keys, client=papers.LEAVER, federation="heart-study", request=papers.REQUEST)
    for given in (
        {"client": "clinic-south"},
        {"federation": "lung-study"},
        {"request": "12" * 32},
    ):
        ((name, value),) = given.items()
        with pytest.raises(TrustError, match=f"it is about {name} .*, expected {value}"):
            verify(path, keys, **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no request 'mine\.json'"):
        verify(path, keys, request="mine.json")


def test_an_acknowledgement_must_be_about_the_request_in_a_file(
    home_and_request: tuple[Home, Path],
) -> None:
    home, path = home_and_request
    entry = workflow.receive(home, path.read_bytes(), small.NOW)
    other = workflow.receive(home, small.ask(home, "site-1"), small.NOW)
    verify([home.acknowledgement_path(entry.digest)], home.keys, request=str(path))
    with pytest.raises(TrustError, match="it is about request"):
        verify([home.acknowledgement_path(other.digest)], home.keys, request=str(path))
