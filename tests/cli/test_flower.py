from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from secede.cli.app import app
from secede.cli.flower import group
from secede.errors import ConfigError, RolledBackError, SecedeError

ROOT = Path(__file__).parents[2]
NAMES = [command.callback.__name__ for command in group.registered_commands if command.callback]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_with_an_example_and_is_documented(name: str) -> None:
    shown = CliRunner().invoke(app, ["flower", name, "--help"])
    assert shown.exit_code == 0
    assert f"Example: secede flower {name}" in shown.stdout
    assert f"`secede flower {name}" in (ROOT / "docs" / "commands.md").read_text()


def test_a_project_is_written_and_told(tmp_path: Path) -> None:
    arguments = ["flower", "init", str(tmp_path / "north"), "--site", "a", "--site", "b", "--json"]
    told = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert told["sites"] == ["a", "b"]
    assert told["superlink"].startswith("127.0.0.1:")
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, ConfigError)
    shown = CliRunner().invoke(app, ["flower", "init", str(tmp_path / "south")])
    assert "site-1, site-2, site-3" in shown.stdout
    assert "Next: secede flower up" in shown.stdout


def test_the_status_of_what_does_not_run_is_told(tmp_path: Path) -> None:
    folder = str(tmp_path / "north")
    CliRunner().invoke(app, ["flower", "init", folder, "--sites", "2"])
    rows = json.loads(CliRunner().invoke(app, ["flower", "status", folder, "--json"]).stdout)
    assert [row["name"] for row in rows] == ["superlink", "site-1", "site-2"]
    assert {row["pid"] for row in rows} == {None}
    assert "not running" in CliRunner().invoke(app, ["flower", "status", folder]).stdout
    assert CliRunner().invoke(app, ["flower", "down", folder]).exit_code == 0


def test_an_address_that_others_reach_is_warned_of(tmp_path: Path) -> None:
    def warned(folder: str, *more: str) -> str:
        shown = CliRunner().invoke(app, ["flower", "init", str(tmp_path / folder), *more])
        assert shown.exit_code == 0
        return shown.stderr

    assert warned("a") == ""
    for more in ((), ("--json",)):
        told = warned("b" + "".join(more), "--listen", "0.0.0.0", "--port", "9092", *more)
        assert "warning: the SuperLink will listen on 0.0.0.0" in told
        assert "port 9092" in told


def test_a_run_that_failed_by_a_roll_back_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.cli import deployed
    from secede.flower.deploy import outcomes, runs
    from secede.flower.deploy.scaffold import write_project

    folder = write_project(tmp_path / "p", sites=["a", "b"], port=9092).folder
    states = iter([None, SimpleNamespace(open=False)])

    def fails(*_: object, **__: object) -> str:
        raise SecedeError("run 7 ended as finished:failed")

    def rolled_back(*_: object) -> None:
        raise RolledBackError("a was not erased: rolled-back")

    monkeypatch.setattr(runs, "run", fails)
    monkeypatch.setattr(outcomes, "request", lambda *_: next(states, None))
    monkeypatch.setattr(outcomes, "verified", rolled_back)
    with pytest.raises(RolledBackError, match="a was not erased"):
        deployed.erase(folder, "name:a", 1.0, as_json=False)
    with pytest.raises(SecedeError, match="run 7 ended"):  # it failed before anything was asked
        deployed.erase(folder, "name:a", 1.0, as_json=False)


def test_without_flower_one_line_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys, importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'flwr' else find(name, *rest)\n"
        "from secede.cli import main\nsys.argv = ['secede', 'flower', 'status', 'x']\nmain()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 2
    assert "pip install secede[flower]" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_looking_at_a_project_needs_neither_torch_nor_flower(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom secede.cli.app import app\n"
        "app(['flower', 'init', 'p'], standalone_mode=False)\n"
        "app(['flower', 'status', 'p'], standalone_mode=False)\n"
        "assert not {'torch', 'flwr'} & set(sys.modules), 'heavy'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
