"""Following a run, with a small program in the place of `flwr`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from harness.lines import Lines
from secede.errors import SecedeError, SilentError, StoppedError
from secede.flower.deploy import processes, runs, server_home
from secede.flower.deploy import project as projects
from secede.flower.deploy.processes import Process
from secede.flower.deploy.project import Project
from secede.flower.deploy.scaffold import write_project

# It answers as `flwr` does: `run` and `list` in JSON, `log` as lines.
FLWR = """#!{python}
import json, pathlib, sys, time
folder = pathlib.Path({folder!r})
(folder / "calls").open("a").write(json.dumps(sys.argv[1:]) + "\\n")
told = json.loads((folder / "told.json").read_text())
kind = sys.argv[1]
if kind == "log":
    for line in told["log"]:
        print(line, flush=True)
    time.sleep(told["log-seconds"])
elif kind == "run":
    print("some words before")
    print(json.dumps(told["run"]))
elif kind == "stop":
    told["status"] = "finished:stopped"
    (folder / "told.json").write_text(json.dumps(told))
    print(json.dumps(told["stop"]))
else:
    print(json.dumps({{"success": True, "runs": [{{"run-id": "7", "status": told["status"]}}]}}))
"""


class Fake:
    """What the fake `flwr` tells."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: dict[str, object] = {
            "run": {"success": True, "run-id": "7"},
            "stop": {"success": True, "run-id": "7"},
            "status": "finished:completed",
            "log": ["\x1b[92mINFO \x1b[0m:      [ROUND 1]", "INFO :", "", "planned"],
            "log-seconds": 0,
        }
        self.tell()

    def tell(self, **changes: object) -> None:
        self.told |= changes
        (self.folder / "told.json").write_text(json.dumps(self.told))

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    path = tmp_path / "flwr"
    path.write_text(FLWR.format(python=sys.executable, folder=str(tmp_path)))
    path.chmod(0o755)
    monkeypatch.setattr(projects, "program", lambda *_: str(path))
    monkeypatch.setattr(runs, "program", lambda *_: str(path))
    monkeypatch.setattr(processes, "running", lambda *_: Process(1, 0, "", "flower-superlink"))
    return Fake(tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_project(tmp_path / "p", sites=["a", "b"])


def test_a_run_is_started_followed_and_its_lines_passed_on(fake: Fake, project: Project) -> None:
    shown, logged = list[str](), Lines()
    config: runs.Config = {"home": 'a "quoted" \\ path', "rounds": 3, "fast": True, "rate": 0.5}
    assert runs.run(project, config, timeout=60, show=shown.append) == "7"
    assert shown == ["[ROUND 1]", "planned"]
    assert logged == ["run 7 started; waiting at most 60 seconds for its end"]
    first = fake.calls()[0]
    assert first[:2] == ["run", str(project.app)]
    override = first[first.index("--run-config") + 1]
    assert parse_config_args([override]) == config  # as Flower reads it
    assert first[-3:] == ["secede", "--format", "json"]


def test_a_run_that_fails_is_an_error_that_says_how_to_go_on(fake: Fake, project: Project) -> None:
    fake.tell(status="finished:failed")
    with pytest.raises(SecedeError, match=r"ended as finished:failed.*the same command goes on"):
        runs.run(project, {}, timeout=60, show=print)


def test_a_run_that_does_not_end_is_not_waited_for_for_ever(fake: Fake, project: Project) -> None:
    fake.tell(status="running", **{"log-seconds": 60})
    with pytest.raises(SilentError, match="has not finished within 3 seconds"):
        runs.run(project, {}, timeout=3, show=print)


def interrupt(line: str) -> None:
    """Press Ctrl-C as soon as the run has printed something."""
    if "ROUND" in line:
        raise KeyboardInterrupt


def test_ctrl_c_stops_the_run_at_the_superlink_and_says_so(fake: Fake, project: Project) -> None:
    logged = Lines()
    fake.tell(status="running", **{"log-seconds": 60})
    with pytest.raises(StoppedError, match="run 7 is stopped; the same command goes on") as caught:
        runs.run(project, {}, timeout=60, show=interrupt)
    assert caught.value.exit_code == 130
    assert logged[-1] == "interrupted: stopping run 7 at the SuperLink"
    assert fake.calls()[-1] == ["stop", "7", "secede", "--format", "json"]


def test_ctrl_c_says_what_became_of_a_run_that_cannot_be_stopped(
    fake: Fake, project: Project
) -> None:
    refusal = {"success": False, "error-message": "not now"}
    fake.tell(stop=refusal, status="running", **{"log-seconds": 60})
    with pytest.raises(StoppedError, match="had ended already as finished:stopped"):
        runs.run(project, {}, timeout=60, show=interrupt)
    text = FLWR.replace('told["status"] = "finished:stopped"', "pass")
    (fake.folder / "flwr").write_text(text.format(python=sys.executable, folder=str(fake.folder)))
    fake.tell(status="running")
    with pytest.raises(StoppedError, match=r"goes on \(flwr stop 7: not now\).*flower stop"):
        runs.run(project, {}, timeout=60, show=interrupt)


def test_ctrl_c_while_a_run_is_being_started_says_where_to_look(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "start", interrupted)
    with pytest.raises(StoppedError, match="being started: `secede flower status"):
        runs.run(project, {}, timeout=60, show=print)


def test_runs_that_have_not_ended_are_listed(fake: Fake, project: Project) -> None:
    assert runs.active(project) == []
    fake.tell(status="running")
    assert runs.active(project) == [runs.ActiveRun("7", "running", 0.0)]


def test_a_refusal_of_flwr_is_passed_on(fake: Fake, project: Project) -> None:
    fake.tell(run={"success": False, "error-message": "Using SuperLink\n\nno such app"})
    with pytest.raises(SecedeError, match=r"^flwr run .*: no such app$"):
        runs.start(project, {})


def test_without_a_superlink_nothing_is_started(
    fake: Fake, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "running", lambda *_: None)
    with pytest.raises(SecedeError, match="does not run: secede flower up"):
        runs.start(project, {})
    assert not (fake.folder / "calls").exists()


def test_a_home_without_the_request_is_named(tmp_path: Path) -> None:
    from secede.erasure.storage.journal import Journal

    with Journal(tmp_path / "journal.sqlite"):
        pass
    with pytest.raises(SecedeError, match="has no request to erase name:a"):
        server_home.verified_result(tmp_path, "name:a")
