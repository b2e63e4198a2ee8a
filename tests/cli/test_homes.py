"""The commands of a federation's server, and the walk-through of an erasure as it is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tiny
from erasure import small
from secede.cli import homes
from secede.erasure.home import Home
from secede.erasure.planning import Wishes
from secede.errors import ConfigError, RequestError, RolledBackError, SilentError

ROOT = Path(__file__).parents[2]


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
    assert len(commands) == 12
    told = {}
    for command in commands:
        ended = shell(command, tmp_path)
        assert ended.returncode == 0, f"{command}: {ended.stderr}"
        told[command] = ended.stdout
    plan, erased, listed, lineage, ledger, verified = (told[c] for c in commands[2:8])
    assert "local-step" in plan
    assert "weight-negation" in plan
    assert "site-0 is erased: second-choice (local-step)" in erased
    assert "promoted" in listed
    assert "No model in use carries 'site-0'; it was erased." in lineage
    assert "is whole" in ledger
    assert "not a byte was altered" in verified
    assert "countersigned by auditor" in told[commands[-1]]
    assert len(list((tmp_path / "home" / "receipts").glob("*.html"))) == 1
    again = shell("secede erase request.json --home home --json", tmp_path)
    assert json.loads(again.stdout)["state"] == "promoted"
    gone = shell(
        "secede request site-0 --home home --key home/sites/site-0.key --out b.json && "
        "secede erase b.json --home home",
        tmp_path,
    )
    assert gone.returncode == 7
    assert "was erased from it" in gone.stderr
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
    options |= {"wishes": Wishes()} | changes
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


def small_config(folder: Path) -> Any:
    from secede.experiments import presets

    return presets.load(str(tiny.write(folder)))


def test_refused_and_rolled_back_have_their_own_exit_codes(
    asked: tuple[Home, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, _ = asked
    stranger = tmp_path / "stranger.json"
    stranger.write_bytes(small.ask(home, model="ab" * 32))
    with pytest.raises(RequestError, match="is refused: model abab"):
        erase(home, stranger)
    assert (RequestError.exit_code, SilentError.exit_code, RolledBackError.exit_code) == (7, 10, 11)
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["state"] == "refused"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean": "middle"}, "mean is 'middle', expected mean, trimmed or median"),
        ({"settings": ["epochs=3"]}, "give METHOD.KEY=VALUE"),
    ],
)
def test_options_that_cannot_be_used_are_named(changes: dict[str, Any], words: str) -> None:
    options: dict[str, Any] = {
        "methods": (),
        "settings": (),
        "distrust": False,
        "rounds": None,
        "least_rounds": 0,
        "mean": "mean",
        "answer_seconds": None,
        "wait": timedelta(0),
        "backups_until": None,
    }
    with pytest.raises(ConfigError, match=words):
        homes.wishes_of(**(options | changes))
    found = homes.wishes_of(**(options | {"settings": ["a.b=3", 'a.c="x"', "a.d=y"]}))
    assert found.settings == {"a": {"b": 3, "c": "x", "d": "y"}}
