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


def test_a_run_that_failed_by_a_roll_back_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.flower.deploy import outcomes, readiness, runs
    from secede.flower.deploy.scaffold import write_project

    folder = write_project(tmp_path / "p", sites=["a", "b"], port=9092).folder
    states = iter([None, SimpleNamespace(open=False)])

    def fails(*_: object, **__: object) -> str:
        raise SecedeError("run 7 ended as finished:failed")

    def rolled_back(*_: object) -> None:
        raise RolledBackError("a was not erased: rolled-back")

    monkeypatch.setattr(runs, "run", fails)
    monkeypatch.setattr(runs, "check_running", lambda _: None)
    for name in ("leaving", "erasure"):
        monkeypatch.setattr(readiness, name, lambda *_, **__: None)
    monkeypatch.setattr(outcomes, "already", lambda *_: None)
    monkeypatch.setattr(outcomes, "request", lambda *_: next(states, None))
    monkeypatch.setattr(outcomes, "verified", rolled_back)
    command = ["flower", "erase", str(folder), "name:a", "--trigger", "other"]
    rolled = CliRunner().invoke(app, command)
    assert isinstance(rolled.exception, RolledBackError)
    failed = CliRunner().invoke(app, command)  # before anything was asked
    assert not isinstance(failed.exception, RolledBackError)
    assert "run 7 ended" in str(failed.exception)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[dict[str, object]]]:
    """A project whose runs are written down instead, and what they were given."""
    from secede.flower.deploy import outcomes, readiness, runs
    from secede.flower.deploy.scaffold import write_project

    given: list[dict[str, object]] = []

    def run(_project: object, config: dict[str, object], **_: object) -> str:
        given.append(config)
        raise SecedeError("run 7 ended")

    monkeypatch.setattr(runs, "run", run)
    monkeypatch.setattr(runs, "check_running", lambda _: None)
    for name in ("leaving", "erasure"):
        monkeypatch.setattr(readiness, name, lambda *_, **__: None)
    for name in ("request", "already"):
        monkeypatch.setattr(outcomes, name, lambda *_: None)
    return str(write_project(tmp_path / "p", sites=["a", "b"], port=9092).folder), given


def test_options_of_an_erasure_reach_the_run(
    asked: tuple[str, list[dict[str, object]]], tmp_path: Path
) -> None:
    from secede.erasure import wishing
    from secede.erasure.planning import Wishes

    folder, given = asked
    options = "--trigger objection --gone --method retrain --answer-seconds 60 --least-rounds 2"
    options += " --no-fading"
    more = ["--set", "retrain.x=1"]
    wrong = CliRunner().invoke(app, ["flower", "erase", folder, "name:a", *options.split(), *more])
    assert isinstance(wrong.exception, ConfigError)  # before anything runs
    assert given == []
    CliRunner().invoke(app, ["flower", "erase", folder, "name:a", *options.split()])
    (config,) = given
    assert (config["erasure.leaver"], config["erasure.trigger"]) == ("name:a", "objection")
    told = json.loads(str(config["erasure.options"]))
    assert told.keys() == {"wishes", "gone"}
    wishes = Wishes(methods=("retrain",), answer_seconds=60.0, least_rounds=2, fading=False)
    assert wishing.read(told["wishes"]) == wishes
    path = tmp_path / "r.json"
    path.write_text("{}")
    no = CliRunner().invoke(app, ["flower", "erase", folder, "name:a", "--request", str(path)])
    assert isinstance(no.exception, ConfigError)
    assert "r.json is no request: give the file" in str(no.exception)
    assert len(given) == 1
    path.write_text('{"payload": "whether it holds is for the app to see"}')
    CliRunner().invoke(app, ["flower", "erase", folder, "name:a", "--request", str(path)])
    assert Path(json.loads(str(given[-1]["erasure.options"]))["request"]).is_absolute()
    CliRunner().invoke(app, ["flower", "erase", folder, "name:a", "--trigger", "other"])
    assert "erasure.options" not in given[-1]  # the app may have its own


def test_an_erasure_has_all_options_of_the_simulated_one() -> None:
    shown = CliRunner().invoke(app, ["flower", "erase", "--help"]).stdout
    simulated = CliRunner().invoke(app, ["erase", "--help"]).stdout
    wanted = {word for word in simulated.split() if word.startswith("--")} - {"--home"}
    assert len(wanted) > 12
    assert wanted <= {word for word in shown.split() if word.startswith("--")}


def test_why_a_site_leaves_must_be_said(asked: tuple[str, list[dict[str, object]]]) -> None:
    folder, given = asked
    silent = CliRunner().invoke(app, ["flower", "erase", folder, "name:a"])
    assert isinstance(silent.exception, ConfigError)
    assert "say why name:a leaves: --trigger consent-withdrawn" in str(silent.exception)
    other = CliRunner().invoke(app, ["flower", "erase", folder, "name:a", "--trigger", "boredom"])
    assert "no trigger 'boredom'" in str(other.exception)
    assert given == []


def test_a_dry_run_shows_the_plan_that_the_run_tells(
    asked: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.erasure.plan import Limits, Margins, Plan, Step
    from secede.flower.deploy import runs

    step = Step(
        rung="retraining",
        method="retrain",
        settings={},
        parameters={},
        needs=(),
        rounds=3,
        least_rounds=3,
        upload_bytes=1,
        download_bytes=1,
    )
    plan = Plan(
        request="a" * 64,
        federation="north",
        client="a",
        model="b" * 64,
        ladder=(step,),
        omitted=(),
        retained=("b",),
        mean="mean",
        margins=Margins(),
        guard=Limits(),
        quorum=0.5,
        retained_seconds=1.0,
        measure_at_leaver=False,
        answer_seconds=1.0,
        asked_until=None,
        backups_until=None,
    )

    def run(_project: object, config: dict[str, str], *, tell: object, **_: object) -> str:
        assert json.loads(config["erasure.options"]) == {"dry_run": True}
        assert callable(tell)
        tell("leaver name:a")
        tell(plan.line())
        return "7"

    folder, _ = asked
    monkeypatch.setattr(runs, "run", run)
    command = ["flower", "erase", folder, "name:a", "--dry-run"]
    shown = CliRunner().invoke(app, command)
    assert "Plan: erase a from north" in shown.stdout
    assert "leaver name:a" in shown.stderr
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["client"] == "a"


def test_runs_under_way_are_shown_and_stopped(
    asked: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.flower.deploy import local, runs
    from secede.flower.deploy.local import Row

    folder, stopped = asked[0], list[str]()
    monkeypatch.setattr(local, "status", lambda _: [Row("superlink", 1, "yes", None)])
    monkeypatch.setattr(runs, "active", lambda _: [runs.Active("7", "running", 12.3)])
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


def test_training_on_what_does_not_run_changes_nothing(tmp_path: Path) -> None:
    folder = str(tmp_path / "p")
    CliRunner().invoke(app, ["flower", "init", folder, "--sites", "2"])
    shown = CliRunner().invoke(app, ["flower", "train", folder, "--from-scratch"])
    assert isinstance(shown.exception, SecedeError)
    assert "does not run: secede flower up" in str(shown.exception)
    assert not (tmp_path / "p" / "home").exists()


def test_an_app_of_an_older_version_is_told_before_anything_runs(
    asked: tuple[str, list[dict[str, object]]],
) -> None:
    folder, given = asked
    path = Path(folder) / "app" / "pyproject.toml"
    path.write_text(path.read_text().replace(', trigger = "", options = ""', ""))
    command = ["flower", "erase", folder, "name:a", "--trigger", "other", "--gone"]
    shown = CliRunner().invoke(app, command)
    assert isinstance(shown.exception, ConfigError)
    assert "has no erasure.trigger, erasure.options" in str(shown.exception)
    assert 'erasure = { home = "home", leaver = "", trigger = "", options = "" }' in str(
        shown.exception
    )
    assert given == []


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("older", "has no erasure.trigger"),
        ("trigger", "say why name:site-1 leaves"),
        ("request", "is no request"),
        ("down", "does not run: secede flower up"),
        ("plan", "--dry-run writes nothing"),
    ],
)
def test_a_mistake_leaves_a_training_that_was_cut_as_it_was(
    tmp_path: Path, mistake: str, words: str
) -> None:
    from flower.small import Federation
    from flower.test_store import dying
    from secede.flower.deploy.scaffold import write_project
    from secede.flower.trainings import Trainings

    project = write_project(tmp_path / "p", sites=["a", "b"], port=9092)
    federation = Federation(project.folder)
    with pytest.raises(KeyboardInterrupt):
        federation.train(4, grid=dying(federation, 3))
    config = project.app / "pyproject.toml"
    if mistake == "older":
        config.write_text(config.read_text().replace(', trigger = "", options = ""', ""))
    before = {p: p.read_bytes() for p in project.home.rglob("*") if p.is_file()}
    cut = Trainings(project.home).cut()
    assert cut is not None
    options = {"trigger": [], "request": ["--request", str(config)], "plan": ["--dry-run"]}
    more = options.get(mistake, ["--trigger", "other"])
    command = ["flower", "erase", str(project.folder), "name:site-1", "--as-it-is", *more]
    shown = CliRunner().invoke(app, command)
    assert isinstance(shown.exception, SecedeError)
    assert words in str(shown.exception)
    assert {p: p.read_bytes() for p in project.home.rglob("*") if p.is_file()} == before
    assert Trainings(project.home).cut() == cut


def test_erasing_again_says_when_it_was_done_and_where_the_receipt_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flower.small import Federation
    from secede.flower.deploy import runs
    from secede.flower.deploy.scaffold import write_project

    project = write_project(tmp_path / "p", sites=["a", "b"], port=9092)
    federation = Federation(project.folder)
    federation.train(2)
    monkeypatch.setattr(runs, "check_running", lambda _: None)

    def run(*_: object, **__: object) -> str:
        federation.erase("name:site-1")
        return "7"

    monkeypatch.setattr(runs, "run", run)
    command = ["flower", "erase", str(project.folder), "name:site-1"]
    first = CliRunner().invoke(app, [*command, "--trigger", "other"])
    assert first.exit_code == 0
    assert "site-1 is erased: " in first.stdout
    assert "already" not in first.output
    again = CliRunner().invoke(app, command)  # nor is a reason asked for
    assert again.exit_code == 0
    assert "site-1 was erased already, at 20" in again.stdout
    (receipt,) = (project.home / "receipts").glob("*.json")
    assert f"{receipt}  receipt, verified" in again.stdout
    assert str(receipt) in again.stderr
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["already"] is True

    def down(*_: object) -> None:
        raise SecedeError("the SuperLink does not run")

    monkeypatch.setattr(runs, "check_running", down)
    offline = CliRunner().invoke(app, [*command, "--json"])
    assert offline.exit_code == 0
    assert json.loads(offline.stdout)["run"] is None
    assert "is not asked once more to delete its updates: the SuperLink does" in offline.stderr


def test_the_way_back_says_that_it_trains_at_once() -> None:
    shown = " ".join(CliRunner().invoke(app, ["flower", "train", "--help"]).stdout.split())
    assert "or --go-on takes it back and trains at once" in shown


@pytest.mark.parametrize(
    ("option", "wished"),
    [([], (False, False)), (["--from-scratch"], (True, False)), (["--go-on"], (False, True))],
)
def test_a_wish_for_a_training_from_scratch_and_its_way_back_reach_the_home(
    asked: tuple[str, list[dict[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
    option: list[str],
    wished: tuple[bool, bool],
) -> None:
    from secede.flower.deploy import readiness, runs

    told = list[tuple[bool, bool]]()

    def training(*_: object, from_scratch: bool, go_on: bool, **__: object) -> readiness.Asked:
        told.append((from_scratch, go_on))
        return readiness.Asked(3, "")

    monkeypatch.setattr(runs, "check_running", lambda _: None)
    monkeypatch.setattr(readiness, "training", training)
    CliRunner().invoke(app, ["flower", "train", asked[0], *option])
    assert told == [wished]
