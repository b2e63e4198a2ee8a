"""The commands of a federation's server, and the walk-through of an erasure as it is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import tiny
from harness.commands import secede
from harness.erasure import small
from harness.paths import ROOT
from secede.cli import homes
from secede.cli import requests as commands
from secede.cli.app import app
from secede.cli.output import show_log_lines
from secede.erasure.documents.acknowledgement import verify_acknowledgement
from secede.erasure.documents.request import new_request, sign_request, unverified_request
from secede.erasure.planning.options import EraseOptions
from secede.erasure.signing.keys import generate_key_pair, load_private
from secede.erasure.storage.home import Home
from secede.erasure.workflow import erase as workflow
from secede.errors import (
    ConfigError,
    RequestError,
    RolledBackError,
    SilentError,
    StoppedError,
    TrustError,
)


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
    assert "is whole" in ledger
    assert "not a byte was altered" in verified
    assert "are what was committed to" in committed
    assert "countersigned by auditor" in told[commands[-1]]
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


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return small.make(tmp_path_factory.mktemp("founded"))


@pytest.fixture
def asked(founded: Home, tmp_path: Path) -> tuple[Home, Path]:
    """A home and a signed request."""
    home = small.copy(founded, tmp_path / "home")
    path = tmp_path / "request.json"
    path.write_bytes(small.ask(home))
    return home, path


def erase(home: Home, path: Path, **changes: Any) -> None:
    options: dict[str, Any] = {"gone": False, "dry_run": False, "as_json": True}
    options |= {"wishes": EraseOptions()} | changes
    show_log_lines()
    homes.erase(path, home.path, **options)


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    asked: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = asked
    before = {p: p.read_bytes() for p in home.path.rglob("*") if p.is_file()}
    erase(home, path, dry_run=True)
    plan = json.loads(capsys.readouterr().out)
    assert [step["rung"] for step in plan["ladder"]] == ["local-step", "server-side", "retraining"]
    erase(home, path, dry_run=True, gone=True, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Not possible: local-step: second-choice needs the leaver online" in shown
    assert {p: p.read_bytes() for p in home.path.rglob("*") if p.is_file()} == before


def test_the_outcome_is_told_in_json_and_progress_on_the_other_stream(
    asked: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = asked
    erase(home, path)
    told = capsys.readouterr()
    outcome = json.loads(told.out)
    assert outcome["state"] == "promoted"
    assert Path(outcome["receipt"]).exists()
    assert "post training round 0" in told.err
    with pytest.raises(ConfigError, match="home already"):
        homes.federation_init(
            home.path, small_config(path.parent), name="n", seed=0, search=None, as_json=True
        )


def test_a_live_federations_home_is_left_to_its_engine(
    asked: tuple[Home, Path], tmp_path: Path
) -> None:
    home, path = asked
    (home.path / "recipe.json").write_text('{"engine":"flower","strategy":"FedAvg"}\n')
    before = {p: p.read_bytes() for p in home.path.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match="home of a live federation: erase with `secede flower"):
        erase(home, path)
    assert {p: p.read_bytes() for p in home.path.rglob("*") if p.is_file()} == before
    trained = tmp_path / "trained"  # nobody was erased there yet
    trained.mkdir()
    (trained / "rounds.jsonl").touch()
    with pytest.raises(ConfigError, match="home already"):
        homes.federation_init(
            trained, small_config(tmp_path), name="n", seed=0, search=None, as_json=True
        )


def small_config(folder: Path) -> Any:
    from secede.experiments import presets

    return presets.load(str(tiny.write(folder)))


def test_settings_that_an_erasure_will_not_have_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = small_config(tmp_path)
    set_there = plain.model_copy(update={"settings": {"second-choice": {"epochs": 1}}})
    for config, said in ((plain.model_copy(update={"settings": {}}), False), (set_there, True)):
        home = tmp_path / f"home-{said}"
        homes.federation_init(home, config, name="n", seed=0, search=tmp_path, as_json=False)
        assert ("an erasure has --set" in capsys.readouterr().out) is said


def test_refused_and_rolled_back_have_their_own_exit_codes(
    asked: tuple[Home, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, _ = asked
    stranger = tmp_path / "stranger.json"
    stranger.write_bytes(small.ask(home, model="ab" * 32))
    with pytest.raises(RequestError, match="is refused: model abab"):
        erase(home, stranger)
    assert (RequestError.exit_code, SilentError.exit_code, RolledBackError.exit_code) == (7, 10, 11)
    told = capsys.readouterr()
    assert json.loads(told.out)["state"] == "refused"
    assert "abab" not in told.err  # the command's own last line says why, once


def test_what_a_request_was_not_planned_with_is_not_ignored_in_silence(
    asked: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = asked
    erase(home, path, wishes=small.options())
    capsys.readouterr()
    erase(home, path, wishes=small.options())
    assert "changes nothing" not in capsys.readouterr().err
    erase(home, path, wishes=EraseOptions(methods=("retrain",)))
    assert "request 1 was planned with other options (promoted)" in capsys.readouterr().err


def test_a_dry_run_of_a_request_that_would_be_refused_is_refused(
    asked: tuple[Home, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, _ = asked
    small.receive(home)
    second = tmp_path / "second.json"
    second.write_bytes(small.ask(home))
    for dry_run in (True, False):
        with pytest.raises(RequestError, match="'site-0' already has the open request 1"):
            erase(home, second, dry_run=dry_run)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("there_before", [False, True])
def test_a_founding_that_is_interrupted_says_that_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there_before: bool
) -> None:
    path = tmp_path / "new"
    if there_before:
        path.mkdir()
        (path / "mine.txt").write_text("stays")

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("secede.simulation.new_federation._train", interrupted)
    words = "is no home" if there_before else "nothing was written"
    with pytest.raises(StoppedError, match=f"interrupted: .*{words}") as caught:
        homes.federation_init(
            path, small_config(tmp_path), name="n", seed=0, search=tmp_path, as_json=True
        )
    assert caught.value.exit_code == 130
    assert path.exists() == there_before
    assert not there_before or (path / "mine.txt").read_text() == "stays"


def test_a_request_is_extended_closed_and_a_client_given_a_quota(
    asked: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = asked
    now = datetime.now(UTC)
    made = new_request(
        federation="north",
        client="site-0",
        trigger="objection",
        model=small.serving(home),
        now=now,
    )
    key = load_private(home.path / "sites" / "site-0.key")
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
    quota = runner.invoke(app, ["requests", "quota", "site-0", "0", *folder])
    assert "site-0 may make 0 requests" in quota.stdout
    again = sign_request(made.model_copy(update={"nonce": "ab" * 32}), key)
    with pytest.raises(RequestError, match="at most 0 pass"):
        workflow.receive(home, again, now)
    with pytest.raises(ConfigError, match="no client 'nobody'"):
        commands.quota(home.path, "nobody", 1, as_json=False)


def test_a_plan_without_the_leaver_does_not_speak_of_its_step(
    asked: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = asked
    erase(home, path, dry_run=True, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "the leaver on a local step only." in shown
    assert "Gate: a loss of at most 5 points over all samples, 10 of a class" in shown
    erase(home, path, dry_run=True, gone=True, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "(3). Gate" in shown
    assert "The next rung is taken if the gate fails; after the last one" in shown


def test_rounds_of_retraining_are_called_so(
    asked: tuple[Home, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = asked
    wished = EraseOptions(untrusted_leaver=True, max_server_rounds=0)
    erase(home, path, wishes=wished)
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
    asked: tuple[Home, Path], content: str, words: str
) -> None:
    home, path = asked
    if content == "acknowledgement":
        entry = small.receive(home, "site-1")
        path.write_bytes(home.acknowledgement(entry.digest).read_bytes())
    elif content == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        made = unverified_request(path.read_bytes())
        key = load_private(home.path / "sites" / "site-2.key")
        path.write_bytes(sign_request(made, key))
    with pytest.raises(TrustError, match=f"{re.escape(str(path))}: .*{words}"):
        erase(home, path)


@pytest.mark.parametrize("given", ["federation.json", "", "keys", "long.json", "server.key"])
def test_what_is_plainly_no_request_is_told_with_what_to_give_instead(
    asked: tuple[Home, Path], given: str
) -> None:
    home, _ = asked
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


def test_a_request_is_checked_against_the_home_before_it_is_signed(
    asked: tuple[Home, Path],
) -> None:
    home, path = asked
    own, other = (home.path / "sites" / f"site-{n}.key" for n in (0, 2))
    commands.check_known(home.path, "site-0", own)
    with pytest.raises(ConfigError, match=r"no client 'site-7'.*expected one of site-0, site-1"):
        commands.check_known(home.path, "site-7", own)
    with pytest.raises(ConfigError, match=r"site-2\.key is site-2's key, expected site-0's"):
        commands.check_known(home.path, "site-0", other)
    stranger, _ = generate_key_pair(path.parent, "stranger")
    with pytest.raises(ConfigError, match="a key that nobody has here, expected site-0's"):
        commands.check_known(home.path, "site-0", stranger)
    with pytest.raises(ConfigError, match="nowhere is no federation's home"):
        commands.addressed(path.parent / "nowhere", None, None)
    erase(home, path)
    with pytest.raises(RequestError, match="'site-0' was erased already"):
        commands.check_known(home.path, "site-0", own)


def test_a_federation_is_called_after_its_experiment(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    assert homes.name_of(config) == config.name == "tiny"
    odd = config.model_copy(update={"name": "paper/mnist backdoor"})
    assert homes.name_of(odd) == "paper-mnist-backdoor"
