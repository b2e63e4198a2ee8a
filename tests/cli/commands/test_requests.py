from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.clock import stop_clock
from harness.erasure import small
from harness.erasure.questions import NOW, People, later, people
from secede.cli.app import app
from secede.cli.commands import requests as module
from secede.cli.commands.requests import list_requests, quota
from secede.erasure.documents.request import (
    new_request,
    sign_request,
    unverified_request,
    verify_acknowledgement,
)
from secede.erasure.signing.keys import load_private_key
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.workflow import erase as workflow
from secede.errors import ConfigError, RequestError


@pytest.fixture
def north(tmp_path: Path) -> People:
    return people(tmp_path / "keys", "north")


def test_requests_are_listed_with_days_left(
    north: People,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "journal.db"
    with pytest.raises(ConfigError, match="no journal at"):
        list_requests(path)
    assert not path.exists()
    with Journal(path) as journal:
        list_requests(path)
        assert capsys.readouterr().out == "no requests yet\n"
        data = north.ask("north")
        north.send(journal, data)
        journal.acknowledge(1, NOW)
        journal.extend(1, 2, "many clients", NOW)
    stop_clock(monkeypatch, module, later(days=10))
    list_requests(path, json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert row["days_left"] == 82
    assert row["due"] == "2027-02-15T12:00:00Z"
    assert row["extended_months"] == 2
    assert row["acknowledged"] == "2026-11-15T12:00:00Z"
    assert unverified_request(data).nonce not in json.dumps(row)
    stop_clock(monkeypatch, module, later(days=94))
    list_requests(path)
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
    stop_clock(monkeypatch, module, later(days=100))
    list_requests(tmp_path / "journal.db")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    (row,) = [line for line in lines if "2026-11-15" in line]
    assert "2027-01-15*" in row
    assert "overdue 39 d" in row
    assert any("* extended" in line for line in lines)


def test_a_request_is_extended_closed_and_a_client_given_a_quota(
    home_and_request: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = home_and_request
    now = datetime.now(UTC)
    made = new_request(
        federation="north",
        client="site-0",
        trigger="objection",
        model=small.serving(home),
        now=now,
    )
    key = load_private_key(home.path / "sites" / "site-0.key")
    path.write_bytes(sign_request(made, key))
    entry = workflow.receive(home, path.read_bytes(), now)
    runner, folder = CliRunner(), ["--home", str(home.path)]
    extended = runner.invoke(
        app, ["requests", "extend", "1", *folder, "--reason", "many at once", "--json"]
    )
    assert extended.exit_code == 0, extended.output
    told = json.loads(extended.stdout)
    assert told["extended_months"] == 1
    said = verify_acknowledgement(Path(told["acknowledgement"]).read_bytes(), home.keyring())
    assert said.extended_to == told["due"]
    assert said.due < told["due"]
    listed = runner.invoke(app, ["requests", str(home.path), "--json"])
    (row,) = json.loads(listed.stdout)
    assert (row["request"], row["extended_months"], row["acknowledged"]) == (
        entry.id,
        1,
        row["received"],
    )
    closed = runner.invoke(app, ["requests", "close", "1", *folder, "--reason", "withdrawn"])
    assert "request 1 of site-0 is refused: withdrawn" in closed.stdout
    allowed = runner.invoke(app, ["requests", "quota", "site-0", "0", *folder])
    assert "site-0 may make 0 requests" in allowed.stdout
    again = sign_request(made.model_copy(update={"nonce": "ab" * 32}), key)
    with pytest.raises(RequestError, match="the limit is 0"):
        workflow.receive(home, again, now)
    with pytest.raises(ConfigError, match="no client 'nobody'"):
        quota("nobody", 1, home.path)
