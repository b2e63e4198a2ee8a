from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harness.erasure.questions import FEDERATION, MODEL, NOW, People, later, people
from secede import state as states
from secede.cli import requests as commands
from secede.erasure.documents.request import unverified_request, verify_request
from secede.erasure.signing.keys import Keyring
from secede.erasure.storage.journal import Journal
from secede.errors import ConfigError


@pytest.fixture
def north(tmp_path: Path) -> People:
    return people(tmp_path / "keys", "north")


def ask(north: People, out: Path, *, model: str = MODEL, as_json: bool = False) -> None:
    commands.request(
        federation=FEDERATION,
        client="north",
        trigger="consent-withdrawn",
        model=model,
        key=north.folder / "north.key",
        out=out,
        now=NOW,
        days=7,
        as_json=as_json,
    )


def test_keygen_says_which_file_is_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.keygen("north", tmp_path, as_json=False)
    told = capsys.readouterr().out
    assert "north.key  keep it secret" in told
    assert "north.pub  give it to the federation's server" in told
    assert (tmp_path / "north.key").read_text().splitlines()[1] not in told
    commands.keygen("south", tmp_path, as_json=True)
    assert json.loads(capsys.readouterr().out).keys() == {"private", "public", "key_id"}
    assert list(Keyring.load(tmp_path)) == ["north", "south"]


def test_a_request_is_written_to_a_file_that_the_server_accepts(
    north: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "request.json"
    ask(north, out)
    told = capsys.readouterr().out
    found = verify_request(out.read_bytes(), north.ring, federation=FEDERATION)
    assert (found.trigger, found.model) == ("consent-withdrawn", MODEL)
    assert found.nonce not in told
    assert found.digest() in told
    assert "send it before 2026-11-22T12:00:00Z" in told
    before = out.read_bytes()
    with pytest.raises(ConfigError, match="exists and is not replaced"):
        ask(north, out)
    assert out.read_bytes() == before
    ask(north, tmp_path / "other.json", as_json=True)
    assert json.loads(capsys.readouterr().out)["expires"] == "2026-11-22T12:00:00Z"


def test_a_model_may_be_named_by_its_file(north: People, tmp_path: Path) -> None:
    state = {"weight": torch.ones(2)}
    states.save(state, tmp_path / "model.safetensors")
    ask(north, tmp_path / "request.json", model=str(tmp_path / "model.safetensors"))
    found = unverified_request((tmp_path / "request.json").read_bytes())
    assert found.model == states.digest(state)
    with pytest.raises(ConfigError, match=r"no model 'absent'.*64 hexadecimal digits"):
        ask(north, tmp_path / "other.json", model="absent")


def test_requests_are_listed_with_days_left(
    north: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal.db"
    with pytest.raises(ConfigError, match="no journal at"):
        commands.requests(path, now=NOW, as_json=False)
    assert not path.exists()
    with Journal(path) as journal:
        commands.requests(path, now=NOW, as_json=False)
        assert capsys.readouterr().out == "no requests yet\n"
        data = north.ask("north")
        north.send(journal, data)
        journal.acknowledge(1, NOW)
        journal.extend(1, 2, "many clients", NOW)
    commands.requests(path, now=later(days=10), as_json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert row["days_left"] == 82
    assert row["due"] == "2027-02-15T12:00:00Z"
    assert row["extended_months"] == 2
    assert row["acknowledged"] == "2026-11-15T12:00:00Z"
    assert unverified_request(data).nonce not in json.dumps(row)
    commands.requests(path, now=later(days=94), as_json=False)
    assert "overdue" in capsys.readouterr().out


def test_the_table_of_requests_keeps_dates_whole_at_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "university-hospital-of-the-north"
    who = people(tmp_path / "keys", name)
    with Journal(tmp_path / "journal.db") as journal:
        who.send(journal, who.ask(name))
        journal.acknowledge(1, NOW)
        journal.extend(1, 1, "many clients", NOW)
    commands.requests(tmp_path / "journal.db", now=later(days=100), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    (row,) = [line for line in lines if "2026-11-15" in line]
    assert "2027-01-15*" in row
    assert "overdue 39 d" in row
    assert any("* extended" in line for line in lines)
