from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.paths import ROOT
from secede.cli.app import app
from secede.cli.commands.flower import group
from secede.errors import ConfigError, SecedeError

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
    told = json.loads(CliRunner().invoke(app, ["flower", "status", folder, "--json"]).stdout)
    rows = told["processes"]
    assert told["runs"] == []
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


def test_runs_under_way_are_shown_and_stopped(
    recorded_runs: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.flower.deploy import runs, supervisor
    from secede.flower.deploy.supervisor import ProcessStatus

    folder, stopped = recorded_runs[0], list[str]()
    monkeypatch.setattr(
        supervisor, "status", lambda _: [ProcessStatus("superlink", 1, "yes", None)]
    )
    monkeypatch.setattr(runs, "active", lambda _: [runs.ActiveRun("7", "running", 12.3)])
    monkeypatch.setattr(runs, "check_running", lambda _: None)
    monkeypatch.setattr(runs, "stop", lambda _, number: stopped.append(number))
    shown = CliRunner().invoke(app, ["flower", "status", folder]).stdout
    assert "run 7 is running, for 12 seconds so far" in shown
    assert f"secede flower stop {folder}" in shown
    told = json.loads(CliRunner().invoke(app, ["flower", "status", folder, "--json"]).stdout)
    assert told["runs"] == [{"run": "7", "status": "running", "seconds": 12.3}]
    wrong = CliRunner().invoke(app, ["flower", "stop", folder, "8"])
    assert "run '8' is not under way: those that are: 7" in str(wrong.exception)
    assert stopped == []
    told = json.loads(CliRunner().invoke(app, ["flower", "stop", folder, "--json"]).stdout)
    assert (told, stopped) == ({"stopped": ["7"]}, ["7"])


@pytest.mark.parametrize(
    ("only", "cut"), [((), True), (("superlink",), True), (("a",), False)], ids=str
)
def test_a_run_that_is_cut_short_is_told(
    recorded_runs: tuple[str, list[dict[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
    only: tuple[str, ...],
    cut: bool,
) -> None:
    from secede.flower.deploy import processes, runs, supervisor
    from secede.flower.deploy.processes import Process

    monkeypatch.setattr(processes, "running", lambda *_: Process(1, 0, "then", "superlink"))
    monkeypatch.setattr(runs, "active", lambda *_, **__: [runs.ActiveRun("7", "running", 12.3)])
    monkeypatch.setattr(supervisor, "down", lambda *_: None)
    options = [word for name in only for word in ("--only", name)]
    shown = CliRunner().invoke(app, ["flower", "down", recorded_runs[0], *options])
    assert shown.exit_code == 0
    told = "run 7 is cut short; repeat the command that began it to continue"
    assert (told in shown.stderr) is cut


def test_a_superlink_that_does_not_answer_is_taken_down_all_the_same(
    recorded_runs: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.flower.deploy import processes, runs, supervisor
    from secede.flower.deploy.processes import Process

    def silent(*_: object, **__: object) -> None:
        raise SecedeError("no answer")

    ended = list[str]()
    monkeypatch.setattr(processes, "running", lambda *_: Process(1, 0, "then", "superlink"))
    monkeypatch.setattr(runs, "active", silent)
    monkeypatch.setattr(supervisor, "down", lambda *_: ended.append("all"))
    assert CliRunner().invoke(app, ["flower", "down", recorded_runs[0]]).exit_code == 0
    assert ended == ["all"]


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
    assert "pip install '.[flower]' in a checkout" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


def test_looking_at_a_project_needs_neither_torch_nor_flower(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom secede.cli.app import app\n"
        "app(['flower', 'init', 'p'], standalone_mode=False)\n"
        "app(['flower', 'status', 'p'], standalone_mode=False)\n"
        "assert not {'torch', 'flwr'} & set(sys.modules), 'heavy'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_training_says_first_where_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.flower.deploy import runs
    from secede.flower.deploy.scaffold import write_project

    project = write_project(tmp_path / "p", sites=["a", "b"], port=9092)
    told = list[object]()

    def run(_: object, config: dict[str, object], **__: object) -> str:
        told.append(config["num-server-rounds"])
        project.home.mkdir(exist_ok=True)
        (project.home / "rounds.jsonl").write_bytes(b"\n")
        return "7"

    monkeypatch.setattr(runs, "check_running", lambda _: None)
    monkeypatch.setattr(runs, "run", run)
    shown = CliRunner().invoke(app, ["flower", "train", str(project.folder)])
    assert shown.exit_code == 0
    assert shown.stderr.startswith("training begins from fresh weights")
    assert told == [3]


def test_accounts_of_sites_reach_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.flower.deploy import supervisor

    folder, given = str(tmp_path / "p"), list[object]()
    CliRunner().invoke(app, ["flower", "init", folder, "--sites", "2"])
    monkeypatch.setattr(
        supervisor, "up", lambda project, *, timeout, accounts: given.append(accounts)
    )
    options = ["--site-account", "site-2=fl-2", "--site-account", "fl-1"]
    assert CliRunner().invoke(app, ["flower", "up", folder, *options]).exit_code == 0
    assert CliRunner().invoke(app, ["flower", "up", folder]).exit_code == 0
    assert given == [{"site-1": "fl-1", "site-2": "fl-2"}, {}]
    shown = CliRunner().invoke(app, ["flower", "up", folder, "--site-account", "site-9=fl-9"])
    assert isinstance(shown.exception, ConfigError)
    assert "expected one account for each of site-1, site-2" in str(shown.exception)


def test_training_on_what_does_not_run_changes_nothing(tmp_path: Path) -> None:
    folder = str(tmp_path / "p")
    CliRunner().invoke(app, ["flower", "init", folder, "--sites", "2"])
    shown = CliRunner().invoke(app, ["flower", "train", folder, "--from-scratch"])
    assert isinstance(shown.exception, SecedeError)
    assert "does not run: secede flower up" in str(shown.exception)
    assert {path.name for path in (tmp_path / "p" / "home").iterdir()} == {"server.key", "keys"}


def test_the_way_back_says_that_it_trains_at_once() -> None:
    shown = " ".join(CliRunner().invoke(app, ["flower", "train", "--help"]).stdout.split())
    assert "or --resume is given" in shown


@pytest.mark.parametrize(
    ("option", "wished"),
    [([], (False, False)), (["--from-scratch"], (True, False)), (["--resume"], (False, True))],
)
def test_a_wish_for_a_training_from_scratch_and_its_way_back_reach_the_home(
    recorded_runs: tuple[str, list[dict[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
    option: list[str],
    wished: tuple[bool, bool],
) -> None:
    from secede.flower.deploy import runs, server_home

    told = list[tuple[bool, bool]]()

    def training(
        *_: object, from_scratch: bool, resume: bool, **__: object
    ) -> server_home.PlannedTraining:
        told.append((from_scratch, resume))
        return server_home.PlannedTraining(3, "")

    monkeypatch.setattr(runs, "check_running", lambda _: None)
    monkeypatch.setattr(server_home, "plan_training", training)
    CliRunner().invoke(app, ["flower", "train", recorded_runs[0], *option])
    assert told == [wished]
