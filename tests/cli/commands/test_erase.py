"""The commands of a federation's server, and the walk-through of an erasure as it is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from harness import tiny
from harness.commands import secede
from harness.erasure import small
from harness.paths import ROOT
from secede.cli.app import show_log
from secede.cli.commands import erase as module
from secede.cli.commands.erase import EraseArguments
from secede.cli.commands.federation import init
from secede.cli.commands.requests import close
from secede.erasure.defences import gate
from secede.erasure.documents.request import sign_request, unverified_request
from secede.erasure.signing.keys import load_private_key
from secede.erasure.storage.home import Home
from secede.errors import (
    ConfigError,
    LossError,
    RequestError,
    RolledBackError,
    SilentError,
    TrustError,
)

# The options of a step that moves little: what is tested is the way, not the method.
SMALL: dict[str, Any] = {
    "method": ["projected-ascent"],
    "set_": [f"projected-ascent.{key}={value}" for key, value in small.STEP.items()],
}


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "80"}
    return subprocess.run(
        ["bash", "-c", command],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )


@pytest.mark.slow
def test_the_walk_through_runs_as_written(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "erasing.md").read_text()
    commands = "".join(re.findall(r"```sh\n(.*?)```", text, re.S)).strip().splitlines()
    assert len(commands) == 15
    assert commands[0] == "secede federation init home demo --name north"
    commands[0] += " --rounds 8 --limit 2500"  # the same with less data, for time's sake
    told = {}
    for command in commands:
        ended = shell(command, tmp_path)
        assert ended.returncode == 0, f"{command}: {ended.stderr}"
        told[command] = ended.stdout
    plan, erased, listed, lineage, ledger, verified, committed = (told[c] for c in commands[2:9])
    assert "local-step" in plan
    assert "weight-negation" in plan
    assert "site-0 is erased: second-choice (local-step)" in erased
    assert "promoted" in listed
    assert "No model in use carries 'site-0'; it was erased." in lineage
    assert "ledger.sqlite: valid" in ledger
    assert "signature valid" in verified
    assert "samples and salt match the commitment" in committed
    assert re.search("^countersigned by +auditor$", told[commands[-1]], re.M)
    assert len(list((tmp_path / "home" / "receipts").glob("*.html"))) == 1
    again = shell("secede erase request.json --home home --json", tmp_path)
    assert json.loads(again.stdout)["state"] == "promoted"
    gone = shell(
        "secede request site-0 --home home --key home/sites/site-0.key --trigger other "
        "--out b.json && secede erase b.json --home home",
        tmp_path,
    )
    assert gone.returncode == 7
    assert "was erased already" in gone.stderr
    assert "Traceback" not in gone.stderr


def erase(home: Home, path: Path, *, json: bool = True, **changes: Any) -> None:
    """Call the command with some of its options."""
    options = {field.name: field.default for field in fields(EraseArguments)} | changes
    show_log()
    module.erase(request=path, folder=home.path, json=json, **options)


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    home_and_request: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = home_and_request
    before = {p: p.read_bytes() for p in home.path.rglob("*") if p.is_file()}
    erase(home, path, dry_run=True)
    plan = json.loads(capsys.readouterr().out)
    assert [step["rung"] for step in plan["ladder"]] == ["local-step", "server-side", "retraining"]
    erase(home, path, dry_run=True, leaver_gone=True, json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Not possible: local-step: second-choice needs the leaver online" in shown
    assert {p: p.read_bytes() for p in home.path.rglob("*") if p.is_file()} == before


def test_the_outcome_is_told_in_json_and_progress_on_the_other_stream(
    home_and_request: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = home_and_request
    erase(home, path)
    told = capsys.readouterr()
    outcome = json.loads(told.out)
    assert outcome["state"] == "promoted"
    assert Path(outcome["receipt"]).exists()
    assert "post training round 0" in told.err
    with pytest.raises(ConfigError, match="home already"):
        init(home.path, str(tiny.write(path.parent)))


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (
            '{"engine":"flower","strategy":"FedAvg"}',
            "live Flower federation: run `secede flower",
        ),
        ('{"engine":"nvflare"}', "live NVFlare federation: run the erasure's job"),
        (None, "live federation that nobody was erased from yet: run `secede flower erase"),
    ],
)
def test_a_live_federations_home_is_left_to_its_engine(
    home_and_request: tuple[Home, Path], tmp_path: Path, recipe: str | None, words: str
) -> None:
    home, path = home_and_request
    if recipe is None:
        home = Home(tmp_path / "trained")
        home.path.mkdir()
        (home.path / "rounds.jsonl").touch()
    else:
        (home.path / "recipe.json").write_text(recipe)
    before = {p: p.read_bytes() for p in home.path.rglob("*") if p.is_file()}
    for dry_run in (False, True):
        with pytest.raises(ConfigError, match=words):
            erase(home, path, dry_run=dry_run)
    with pytest.raises(ConfigError, match=words):
        close(1, home.path, "withdrawn")
    with pytest.raises(ConfigError, match="home already"):
        init(home.path, str(tiny.write(tmp_path)))
    assert {p: p.read_bytes() for p in home.path.rglob("*") if p.is_file()} == before


def test_refused_and_rolled_back_have_their_own_exit_codes(
    home_and_request: tuple[Home, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, _ = home_and_request
    stranger = tmp_path / "stranger.json"
    stranger.write_bytes(small.ask(home, model="ab" * 32))
    with pytest.raises(RequestError, match="is refused: model abab"):
        erase(home, stranger)
    assert (RequestError.exit_code, SilentError.exit_code, RolledBackError.exit_code) == (7, 10, 11)
    told = capsys.readouterr()
    assert json.loads(told.out)["state"] == "refused"
    assert "abab" not in told.err  # the command's own last line says why, once


def test_a_loss_by_retraining_has_an_exit_code_and_names_the_option_that_accepts_it(
    home_and_request: tuple[Home, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home, path = home_and_request
    monkeypatch.setattr(gate, "find_loss", lambda *_, **__: "all samples: accuracy fell")
    with pytest.raises(LossError, match=r"`secede erase`.* with --accept-loss REASON") as waits:
        erase(home, path, untrusted_leaver=True, max_rounds=0)
    assert waits.value.exit_code == 12
    capsys.readouterr()
    erase(home, path, accept_loss="objection upheld")
    told = capsys.readouterr()
    assert json.loads(told.out)["state"] == "promoted"
    assert "other options" not in told.err
    assert "objection upheld" in str(small.told(home)["limits"])


def test_what_a_request_was_not_planned_with_is_not_ignored_in_silence(
    home_and_request: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = home_and_request
    erase(home, path, **SMALL)
    capsys.readouterr()
    erase(home, path, **SMALL)
    assert "changes nothing" not in capsys.readouterr().err
    erase(home, path, method=["retrain"])
    assert "request 1 already has a plan (promoted) with other options" in capsys.readouterr().err


def test_a_dry_run_of_a_request_that_would_be_refused_is_refused(
    home_and_request: tuple[Home, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, _ = home_and_request
    small.receive(home)
    second = tmp_path / "second.json"
    second.write_bytes(small.ask(home))
    for dry_run in (True, False):
        with pytest.raises(RequestError, match="'site-0' already has the open request 1"):
            erase(home, second, dry_run=dry_run)
    assert capsys.readouterr().out == ""


def test_a_plan_without_the_leaver_does_not_speak_of_its_step(
    home_and_request: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = home_and_request
    erase(home, path, dry_run=True, json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "the leaver on a local step only." in shown
    assert "Gate: a loss of at most 5 points over all samples, 10 of a class" in shown
    erase(home, path, dry_run=True, leaver_gone=True, json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "(3). Gate" in shown
    assert "The next rung is taken if the gate fails; after the last one" in shown


def test_margins_are_in_plan_and_receipt(
    home_and_request: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = home_and_request
    how: dict[str, Any] = {"margin": 2.5, "class_margin": 20.0}
    erase(home, path, dry_run=True, json=False, **how)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Gate: a loss of at most 2.5 points over all samples, 20 of a class" in shown
    erase(home, path, **SMALL, **how)
    settings = small.told(home)["method"]["settings"]
    assert (settings["margins.overall"], settings["margins.per_class"]) == (0.025, 0.2)


def test_rounds_of_retraining_are_called_so(
    home_and_request: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = home_and_request
    erase(home, path, untrusted_leaver=True, max_rounds=0)
    told = capsys.readouterr().err
    assert "retraining round 4" in told
    assert "post training round 4" not in told


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("acknowledgement", "this is an acknowledgement, not a request"),
        ("cut", "not valid JSON"),
        ("other's", "signed with site-2's key, expected site-0's"),
    ],
)
def test_a_file_that_is_no_request_is_named_and_what_it_is(
    home_and_request: tuple[Home, Path], content: str, words: str
) -> None:
    home, path = home_and_request
    if content == "acknowledgement":
        entry = small.receive(home, "site-1")
        path.write_bytes(home.acknowledgement_path(entry.digest).read_bytes())
    elif content == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        made = unverified_request(path.read_bytes())
        key = load_private_key(home.path / "sites" / "site-2.key")
        path.write_bytes(sign_request(made, key))
    with pytest.raises(TrustError, match=f"{re.escape(str(path))}: .*{words}"):
        erase(home, path)


@pytest.mark.parametrize("given", ["federation.json", "", "keys", "long.json", "server.key"])
def test_what_is_plainly_no_request_is_told_with_what_to_give_instead(
    home_and_request: tuple[Home, Path], given: str
) -> None:
    home, _ = home_and_request
    (home.path / "long.json").write_text(json.dumps({"clients": ["a" * 20_000]}))
    before = {p: p.read_bytes() for p in home.path.rglob("*") if p.is_file()}
    words = "is no request" if "." in given else "is a folder and no request"
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match=f"{words}: give the file that `secede request`"):
            erase(home, home.path / given, dry_run=dry_run)
    assert {p: p.read_bytes() for p in home.path.rglob("*") if p.is_file()} == before
    shown = secede("erase", f"{home.path}/federation.json", "--home", str(home.path))
    assert shown.returncode == 2
    assert "federation.json is no request" in shown.stderr
