from __future__ import annotations

import hashlib
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

from harness.erasure import papers
from secede import state as states
from secede.cli import trust
from secede.erasure.documents.receipt import Statement
from secede.erasure.documents.request import new_request, sign_request
from secede.erasure.receipts.verify import countersign_receipt, sign_receipt, verify_receipt
from secede.erasure.signing.keys import Keyring, PrivateKey, generate_key_pair, load_private
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.model_registry import Candidate, ModelRegistry
from secede.errors import ConfigError, SecedeError, StateError, TrustError

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a receipt, its keys, the model and the ledger."""
    state = {"w": torch.tensor([1.0, 2.0])}
    states.save(state, tmp_path / "model.safetensors")
    after = states.digest(state)
    with Ledger(tmp_path / "ledger.db") as ledger:
        head = papers.fill(ledger, receipts=False, after=after)
    for name in ("server", papers.LEAVER):
        private, _ = generate_key_pair(tmp_path / "keys", name)
        private.rename(tmp_path / private.name)
    told = json.loads(papers.statement(ledger=head).payload())
    told["predicate"]["models"]["after"] = after
    told["subject"][0]["digest"]["sha256"] = after
    statement = Statement.model_validate_json(json.dumps(told))
    signed = sign_receipt(statement, load_private(tmp_path / "server.key"))
    with Ledger(tmp_path / "ledger.db") as ledger:
        digest = hashlib.sha256(statement.payload()).hexdigest()
        papers.issue(ledger, digest, after=after)
        ledger.export(tmp_path / "ledger.jsonl")
    leaver = load_private(tmp_path / f"{papers.LEAVER}.key")
    (tmp_path / "receipt.json").write_bytes(countersign_receipt(signed, leaver))
    return tmp_path


def test_a_receipt_is_told_in_plain_words(folder: Path, capsys: Capture) -> None:
    trust.verify(
        folder / "receipt.json",
        folder / "keys",
        model=folder / "model.safetensors",
        ledger=folder / "ledger.db",
        as_json=False,
    )
    said = capsys.readouterr().out
    assert "receipt.json holds: not a byte was altered" in said
    assert "signed by  server; countersigned by clinic-north" in said
    assert re.search("^key id     [0-9a-f]{64}$", said, re.MULTILINE)
    assert "model      is the erased model" in said
    assert "ledger     whole up to row 10; says the same as the receipt" in said
    assert "forgotten  yes, within 3 points of retraining" in said
    assert "evidence, not proof" in said
    assert max(map(len, said.splitlines())) <= 200


def test_what_was_not_compared_is_said(folder: Path, capsys: Capture) -> None:
    trust.verify(folder / "receipt.json", folder / "keys", as_json=False)
    said = capsys.readouterr().out
    assert "model      not compared (--model FILE)" in said
    assert "ledger     not compared (--ledger FILE)" in said


def test_a_receipt_as_json_and_its_page(folder: Path, capsys: Capture) -> None:
    path = folder / "receipt.json"
    trust.verify(path, folder / "keys", ledger=folder / "ledger.jsonl", page=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["verified"] is True
    assert told["countersigned_by"] == [papers.LEAVER]
    assert told["model_checked"] is False
    assert told["ledger"]["number"] == 10
    assert told["statement"]["predicate"]["request"]["client"] == papers.LEAVER
    assert Path(told["page"]) == folder / "receipt.html"
    assert "Erasure of <b>clinic-north</b>" in (folder / "receipt.html").read_text()


def test_an_altered_receipt_writes_no_page_and_says_nothing_good(
    folder: Path, capsys: Capture
) -> None:
    path = folder / "receipt.json"
    path.write_bytes(path.read_bytes().replace(b"A", b"B", 1))
    with pytest.raises(TrustError):
        trust.verify(path, folder / "keys", page=True, as_json=False)
    assert capsys.readouterr().out == ""
    assert not (folder / "receipt.html").exists()


def test_another_or_a_broken_model_is_refused(folder: Path) -> None:
    other = folder / "other.safetensors"
    states.save({"w": torch.tensor([1.0, 2.5])}, other)
    with pytest.raises(TrustError, match="it is another model, or it was altered"):
        trust.verify(folder / "receipt.json", folder / "keys", model=other, as_json=False)
    other.write_bytes(b"nothing")
    with pytest.raises(StateError, match="not a readable safetensors file"):
        trust.verify(folder / "receipt.json", folder / "keys", model=other, as_json=False)


@pytest.mark.parametrize("missing", ["receipt.json", "keys", "ledger.db"])
def test_missing_files_are_named(folder: Path, missing: str) -> None:
    paths = {name: folder / name for name in ("receipt.json", "keys", "ledger.db")}
    paths[missing] = folder / "nowhere"
    with pytest.raises(SecedeError, match="nowhere"):
        trust.verify(paths["receipt.json"], paths["keys"], ledger=paths["ledger.db"], as_json=False)


def test_verifying_needs_no_torch_and_no_private_key(folder: Path) -> None:
    for private in folder.glob("*.key"):
        private.unlink()
    program = (
        "import sys; from pathlib import Path; from secede.cli import trust\n"
        "folder = Path(sys.argv[1])\n"
        "trust.verify(folder / 'receipt.json', folder / 'keys', ledger=folder / 'ledger.db',\n"
        "             page=True, as_json=True)\n"
        "sys.exit('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(folder)], stdout=subprocess.DEVNULL)
    assert ended.returncode == 0


@pytest.mark.parametrize("name", ["ledger.db", "ledger.jsonl"])
def test_a_ledger_is_verified_in_both_forms(folder: Path, name: str, capsys: Capture) -> None:
    trust.ledger_verify(folder / name, as_json=False)
    said = capsys.readouterr().out
    assert "is whole: 10 rows" in said
    assert "A cut tail shows only beside a known head" in said
    head = next(line for line in said.splitlines() if line.startswith("head ")).split()[1]
    trust.ledger_verify(folder / name, expected=head, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "whole": True,
        "number": 10,
        "hash": head.partition(":")[2],
        "heads_compared": 1,
        "receipts_not_usable": [],
    }


def test_a_ledger_is_exported_and_not_over_another_file(folder: Path, capsys: Capture) -> None:
    out = folder / "out.jsonl"
    trust.ledger_export(folder / "ledger.db", out, as_json=True)
    assert json.loads(capsys.readouterr().out)["number"] == 10
    assert out.read_bytes() == (folder / "ledger.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="exists and is not replaced"):
        trust.ledger_export(folder / "ledger.db", out, as_json=True)
    with pytest.raises(ConfigError, match="no federation's home"):
        trust.ledger_verify(folder, as_json=True)


def countersign(folder: Path, key: Path) -> None:
    trust.countersign(folder / "receipt.json", key, folder / "keys", as_json=False)


def test_an_auditor_countersigns_and_the_page_says_so(folder: Path, capsys: Capture) -> None:
    key, _ = generate_key_pair(folder / "keys" / "auditors", "office")
    countersign(folder, key)
    assert "countersigned by clinic-north, office" in capsys.readouterr().out
    assert "countersigned by <b>clinic-north, office</b>" in (folder / "receipt.html").read_text()
    trust.verify(
        folder / "receipt.json",
        folder / "keys",
        countersigned_by=["office", papers.LEAVER],
        ledger=folder / "ledger.db",
        as_json=True,
    )
    with pytest.raises(TrustError, match="not countersigned by board"):
        trust.verify(
            folder / "receipt.json", folder / "keys", countersigned_by=["board"], as_json=True
        )


@pytest.mark.parametrize("known", [False, True])
def test_nobody_else_can_countersign_and_nothing_is_written(folder: Path, known: bool) -> None:
    key, _ = generate_key_pair(folder / ("keys" if known else "elsewhere"), "clinic-south")
    before = (folder / "receipt.json").read_bytes()
    own = "is the key of 'clinic-south', who is neither 'clinic-north'.*nothing is signed"
    with pytest.raises(TrustError, match=own if known else "unknown key"):
        countersign(folder, key)
    assert (folder / "receipt.json").read_bytes() == before
    assert not (folder / "receipt.html").exists()


def test_a_cut_ledger_and_a_head_that_is_none_are_refused(folder: Path) -> None:
    path = folder / "ledger.jsonl"
    rows = path.read_bytes().splitlines(keepends=True)
    head = f"10:{json.loads(rows[-1])['hash']}"
    path.write_bytes(b"".join(rows[:4]))
    with pytest.raises(TrustError, match="ends at row 4 but had 10"):
        trust.ledger_verify(path, expected=head, as_json=False)
    with pytest.raises(ConfigError, match="give NUMBER:HASH"):
        trust.ledger_verify(path, expected="six", as_json=False)


def test_lineage_answers_who_is_still_carried(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "lineage.db"
    with ModelRegistry(path) as lineage:
        pass
    trust.lineage(path, as_json=False)
    assert capsys.readouterr().out == "no models yet\n"
    one, two = "1" * 64, "2" * 64
    with ModelRegistry(path) as lineage:
        first = Candidate(digest=one, parent=None, run="run", round=1, clients=("a", ":no:"))
        lineage.promote(first, papers.NOW)
    trust.lineage(path, "a", as_json=False)
    said = capsys.readouterr().out
    assert "1 model still carries 'a', and it serves; 'a' was not erased." in said
    assert ":no:" in said
    with ModelRegistry(path) as lineage:
        made = Candidate(digest=two, parent=one, run="run", round=2, clients=(":no:",))
        lineage.promote_erased(made, client="a", request=papers.REQUEST, now=papers.NOW)
    trust.lineage(path, "a", as_json=False)
    assert capsys.readouterr().out == "No model in use carries 'a'; it was erased.\n"
    with pytest.raises(ConfigError, match="no model ever carried 'A'"):
        trust.lineage(path, "A", as_json=False)
    trust.lineage(path, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [model["status"] for model in told["models"]] == ["retired", "serving"]
    assert told["erased_clients"] == ["a"]


def test_the_registry_keeps_digests_and_dates_whole_at_80_columns(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = tuple(f"clinic-{number:02}" for number in range(20))
    with ModelRegistry(tmp_path / "lineage.db") as lineage:
        made = Candidate(digest="1" * 64, parent=None, run="north", round=1, clients=names)
        lineage.promote(made, papers.NOW)
    trust.lineage(tmp_path / "lineage.db", as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[0] == "1" * 12
    assert lines[0].endswith(f"serving since {papers.NOW:%Y-%m-%d}")
    assert all(any(name in line for line in lines) for name in names)


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
    path.write_bytes(sign_request(asked, load_private(key)))
    words = r"request\.json: this is a request, not a receipt"
    with pytest.raises(TrustError, match=words):
        trust.verify(path, folder / "keys", as_json=False)
    with pytest.raises(TrustError, match=words):
        trust.countersign(path, key, folder / "keys", as_json=False)


def test_two_who_countersign_at_once_both_stand_in_the_receipt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [
        generate_key_pair(folder / "keys" / "auditors", name)[0] for name in ("board", "office")
    ]

    def slowly(data: bytes, key: PrivateKey) -> bytes:
        time.sleep(0.3)
        return countersign_receipt(data, key)

    monkeypatch.setattr(trust, "countersign_receipt", slowly)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda key: countersign(folder, key), both))
    trust.verify(
        folder / "receipt.json",
        folder / "keys",
        countersigned_by=["board", "office", papers.LEAVER],
        as_json=True,
    )


def test_what_holds_by_definition_is_not_called_measured(folder: Path, capsys: Capture) -> None:
    told = verify_receipt((folder / "receipt.json").read_bytes(), Keyring.load(folder / "keys"))
    answers = told.statement.predicate.verification.model_copy(update={"by_definition": True})
    assert trust._forgotten(answers).startswith("yes, by definition")


def test_a_model_that_is_a_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        trust.verify(folder / "receipt.json", folder / "keys", model=folder / "pipe", as_json=True)
