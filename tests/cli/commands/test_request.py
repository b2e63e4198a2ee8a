from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.clock import stop_clock
from harness.erasure import small
from harness.erasure.questions import FEDERATION, MODEL, NOW, People, people
from secede import state as states
from secede.cli.commands import request as module
from secede.cli.commands.request import request
from secede.erasure.documents.request import sign_request, unverified_request, verify_request
from secede.erasure.signing.keys import generate_key_pair, load_private_key
from secede.erasure.storage.home import Home
from secede.erasure.workflow import erase as workflow
from secede.errors import ConfigError, RequestError


@pytest.fixture
def north(tmp_path: Path) -> People:
    return people(tmp_path / "keys", "north")


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clock(monkeypatch, module, NOW)


def ask(north: People, out: Path, *, model: str = MODEL, json: bool = False) -> None:
    request(
        "north",
        key=north.folder / "north.key",
        trigger="consent-withdrawn",
        federation=FEDERATION,
        model=model,
        out=out,
        json=json,
    )


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
    ask(north, tmp_path / "other.json", json=True)
    assert json.loads(capsys.readouterr().out)["expires"] == "2026-11-22T12:00:00Z"


def test_a_model_may_be_named_by_its_file(north: People, tmp_path: Path) -> None:
    state = {"weight": torch.ones(2)}
    states.save(state, tmp_path / "model.safetensors")
    ask(north, tmp_path / "request.json", model=str(tmp_path / "model.safetensors"))
    found = unverified_request((tmp_path / "request.json").read_bytes())
    assert found.model == states.digest(state)
    with pytest.raises(ConfigError, match=r"no model 'absent'.*64 hexadecimal digits"):
        ask(north, tmp_path / "other.json", model="absent")


def test_a_request_is_checked_against_the_home_before_it_is_signed(
    home_and_request: tuple[Home, Path],
) -> None:
    home, path = home_and_request

    def sign(client: str, key: Path) -> None:
        request(client, key, "objection", home=home.path, out=path.with_name(f"{client}.json"))

    own, other = (home.path / "sites" / f"site-{n}.key" for n in (0, 2))
    sign("site-0", own)
    with pytest.raises(ConfigError, match=r"no client 'site-7'.*expected one of site-0, site-1"):
        sign("site-7", own)
    with pytest.raises(ConfigError, match=r"site-2\.key is site-2's key, expected site-0's"):
        sign("site-0", other)
    stranger, _ = generate_key_pair(path.parent, "stranger")
    with pytest.raises(ConfigError, match="a key that nobody has here, expected site-0's"):
        sign("site-0", stranger)
    with pytest.raises(ConfigError, match="nowhere is no federation's home"):
        request("site-0", own, "objection", home=path.parent / "nowhere")
    with pytest.raises(ConfigError, match="give --federation and --model, or --home for both"):
        request("site-0", own, "objection", federation="north")
    small.erase(home, small.receive(home).id)
    with pytest.raises(RequestError, match="'site-0' was erased already"):
        sign("site-0", own)


def test_a_request_names_the_one_server_that_it_counts_for(
    home_and_request: tuple[Home, Path], caplog: pytest.LogCaptureFixture
) -> None:
    home, path = home_and_request
    key, public = home.path / "sites" / "site-0.key", home.keys / "server.pub"

    def asked(out: str, **given: Any) -> str | None:
        request("site-0", key, "objection", out=path.with_name(out), **given)
        return unverified_request(path.with_name(out).read_bytes()).server

    away = {"federation": "north", "model": MODEL}
    assert asked("at-home.json", home=home.path) == home.server_id
    assert asked("away.json", server_key=public, **away) == home.server_id
    assert not caplog.records
    assert asked("anywhere.json", **away) is None
    assert "give --server-key" in caplog.text


def test_a_request_counts_in_no_other_home_of_the_same_name_client_and_model(
    home_and_request: tuple[Home, Path], tmp_path: Path
) -> None:
    home, path = home_and_request
    folder = tmp_path / "anew"
    folder.mkdir()
    again = small.make(folder)
    assert small.serving(again) == small.serving(home)
    shutil.copyfile(home.keys / "site-0.pub", again.keys / "site-0.pub")
    workflow.register_change(again, NOW)
    with pytest.raises(RequestError, match="the request is for the server with key"):
        workflow.receive(again, path.read_bytes(), NOW)
    made = unverified_request(path.read_bytes()).model_copy(update={"server": again.server_id})
    key = load_private_key(home.path / "sites" / "site-0.key")
    workflow.receive(again, sign_request(made, key), NOW)
