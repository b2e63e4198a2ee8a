"""Putting up and taking down, with small programs in the place of Flower's.

Tests `flower/deploy/project.py` and `flower/deploy/write_pid.py` too.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.lines import Lines
from secede.errors import ConfigError, RecordError, SecedeError, SilentError
from secede.flower.deploy import port_guard, processes, supervisor
from secede.flower.deploy.project import MARK, Project
from secede.flower.deploy.scaffold import write_project

# It listens with the project's certificate and has a child in a session of its own, as a SuperLink.
LINK = """
import socket, ssl, subprocess, sys, time
folder, host, port = sys.argv[2], sys.argv[3], int(sys.argv[4])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{folder}/server.crt", f"{folder}/server.key")
listening = socket.create_server((host, port))
while True:
    plain, _ = listening.accept()
    try:
        context.wrap_socket(plain, server_side=True).close()
    except OSError:
        pass
"""
NODE = "import sys, time\nprint('SuperNode ID:', sys.argv[2], flush=True)\ntime.sleep(600)"


class Flower:
    """What the fake programs and the fake SuperLink do."""

    def __init__(self) -> None:
        self.node, self.offline, self.registrations = NODE, set[str](), list[str]()

    def superlink_command(self, project: Project) -> list[str]:
        where = [str(project.certificates), project.listen, str(project.port)]
        project.database.touch()
        return [sys.executable, "-c", LINK, str(project.database), *where]

    def supernode_command(self, project: Project, site: str, port: int) -> list[str]:
        return [sys.executable, "-c", self.node, str(project.key(site)), self._id(project, site)]

    def register_site(self, project: Project, site: str) -> str | None:
        self.registrations.append(site)
        return self._id(project, site)

    def node_statuses(self, project: Project) -> dict[str, str]:
        down = {self._id(project, site) for site in self.offline}
        every = (self._id(project, site) for site in project.sites)
        return {node: "offline" if node in down else "online" for node in every}

    def _id(self, project: Project, site: str) -> str:
        return str(100 + project.sites.index(site))


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> Flower:
    flower = Flower()
    for name in ("superlink_command", "supernode_command", "register_site", "node_statuses"):
        monkeypatch.setattr(supervisor, name, getattr(flower, name))
    return flower


@pytest.fixture
def project(tmp_path: Path, flower: Flower) -> Iterator[Project]:
    project = write_project(tmp_path / "p", sites=["site-1", "site-2"])
    yield project
    supervisor.down(Project.load(project.folder))
    assert of(project) == []


def of(project: Project) -> list[processes.Process]:
    return processes.with_environment(MARK, str(project.folder))


def pids(project: Project) -> dict[str, int | None]:
    return {row.name: row.pid for row in supervisor.status(project)}


def test_up_starts_all_and_down_leaves_nothing_behind(project: Project, flower: Flower) -> None:
    logged = Lines()
    supervisor.up(project)
    rows = supervisor.status(project)
    assert [(row.name, row.online) for row in rows] == [
        ("superlink", "yes"),
        ("site-1", "yes"),
        ("site-2", "yes"),
    ]
    assert all(row.pid for row in rows)
    assert sum("is online" in line for line in logged) == 2
    assert any("at most" in line for line in logged)
    assert len(of(project)) == 4  # the SuperLink's child too
    supervisor.down(project)
    assert of(project) == []
    assert {row.pid for row in supervisor.status(project)} == {None}
    assert not list(project.state.glob("*.pid"))


def test_up_says_what_others_reach_and_that_sites_should_have_their_own_account(
    project: Project, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = Lines()
    up = supervisor.up(project)
    monkeypatch.setattr(port_guard, "names_peers", lambda: False)
    supervisor.up(up)
    told = "\n".join(logged)
    where = up.superlink_address
    assert f"other accounts of this machine may act as sites at {where}, with a regist" in told
    assert f"every program on this machine may start runs at {where}" in told
    assert f"a run's code there can read {project.home}: for more than a try-out" in told


def killed(project: Project, name: str, pid: int) -> None:
    """Kill one, and wait until it is gone: on a busy machine that takes a moment."""
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 30
    while pids(project)[name] == pid and time.monotonic() < end:
        time.sleep(0.02)
    assert pids(project)[name] is None


def test_a_second_up_says_what_runs_and_starts_only_what_does_not(
    project: Project, flower: Flower
) -> None:
    supervisor.up(project)
    before = pids(project)
    victim = before["site-2"]
    assert victim is not None
    killed(project, "site-2", victim)
    logged = Lines()
    supervisor.up(project)
    after = pids(project)
    assert {n for n in before if before[n] != after[n]} == {"site-2"}
    assert f"site-1 runs already, process {before['site-1']}" in logged
    assert flower.registrations == ["site-1", "site-2"]  # once


def test_a_killed_superlinks_children_are_swept_and_its_port_is_kept(project: Project) -> None:
    up = supervisor.up(project)
    link = pids(project)["superlink"]
    assert link is not None
    killed(project, "superlink", link)
    again = supervisor.up(project)
    assert again.port == up.port == Project.load(project.folder).port
    assert len(of(project)) == 5  # the dead SuperLink's child among them


def test_what_a_killed_site_left_behind_is_ended_when_it_is_started_again(
    project: Project, flower: Flower
) -> None:
    flower.node = (
        "import subprocess\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    ).join(("import sys, time\n", NODE))
    supervisor.up(project)
    before = pids(project)
    victim = before["site-1"]
    assert victim is not None
    (orphan,) = processes.descendants([victim])
    killed(project, "site-1", victim)
    logged = Lines()
    supervisor.up(project)
    assert f"process {orphan.pid} was left behind by site-1 and is stopped" in logged
    assert orphan.pid not in {process.pid for process in of(project)}
    after = pids(project)
    assert {name for name in after if after[name] != before[name]} == {"site-1"}


def test_what_was_started_by_hand_is_left_alone(project: Project) -> None:
    here = {**os.environ, "FLWR_HOME": project.environment("site-1")["FLWR_HOME"]}  # as in site.sh
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=here) as own:
        try:
            supervisor.up(project)
            assert own.poll() is None
        finally:
            own.kill()


def test_a_site_whose_record_is_lost_is_neither_ended_nor_started_twice(project: Project) -> None:
    supervisor.up(project)
    pid = pids(project)["site-1"]
    (project.state / "site-1.pid").unlink()
    with pytest.raises(SecedeError, match=rf"site-1 runs as process {pid}, .* secede flower down"):
        supervisor.up(project)
    assert pid in {process.pid for process in of(project)}


def test_an_id_that_another_process_got_is_left_alone(project: Project) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        project.state.mkdir()
        (project.state / "site-1.pid").write_text(f"{stranger.pid}\n")
        assert pids(project)["site-1"] is None
        supervisor.down(project)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("text", ["", "x", "-1", "99999999999", "1"])
def test_a_damaged_pid_file_is_no_process(project: Project, text: str) -> None:
    project.state.mkdir()
    (project.state / "site-1.pid").write_text(text)
    assert pids(project)["site-1"] is None


def test_a_site_that_ends_at_once_is_named_with_its_last_words(
    project: Project, flower: Flower
) -> None:
    flower.node = "import sys, time; print('no such certificate'); time.sleep(1); sys.exit(3)"
    with pytest.raises(SecedeError, match=r"site-1 ended: .*no such certificate"):
        supervisor.up(project)
    assert of(project) == []


def test_a_killed_site_that_is_refused_for_a_while_is_started_again(
    project: Project, flower: Flower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_RESTART_PAUSE", 0.1)
    mark = tmp_path / "tried"
    flower.node = (
        f"import pathlib, sys, time\nmark = pathlib.Path({str(mark)!r} + sys.argv[2])\n"
        "if not mark.exists():\n    mark.touch()\n    time.sleep(0.3)\n"
        "    sys.exit('[code: 2004] Failed to activate SuperNode.')\n" + NODE
    )
    logged = Lines()
    supervisor.up(project, timeout=30)
    assert sum("starting it again" in line for line in logged) == 2
    assert all(row.pid for row in supervisor.status(project))


def test_a_site_that_never_comes_online_is_not_waited_for_for_ever(
    project: Project, flower: Flower
) -> None:
    flower.offline = {"site-2"}
    with pytest.raises(SilentError, match=r"site-2 not online within 0\.5 seconds"):
        supervisor.up(project, timeout=0.5)
    assert of(project) == []


def test_a_superlink_that_is_online_before_the_site_says_so_is_not_believed(
    project: Project, flower: Flower
) -> None:
    flower.node = "import time; time.sleep(600)"  # killed before: still called online
    with pytest.raises(SilentError, match="site-1, site-2 not online"):
        supervisor.up(project, timeout=0.5)


def test_a_taken_port_is_replaced_and_the_new_one_written_down(project: Project) -> None:
    with socket.create_server((project.listen, project.port)):
        up = supervisor.up(project)
        assert up.port != project.port
        assert Project.load(project.folder) == up
        assert str(up.port) in (project.folder / "environment.sh").read_text()
        assert (
            f"{up.superlink_address}"
            in (project.folder / "flower/operator/config.toml").read_text()
        )
        site = pids(up)["superlink"]
        assert site is not None
        os.kill(site, signal.SIGKILL)
        while processes.running(up, "superlink"):
            time.sleep(0.05)
        with (
            socket.create_server((up.listen, up.port)),
            pytest.raises(ConfigError, match="running sites expect"),
        ):
            supervisor.up(up)


def test_one_command_at_a_time(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_LOCK_TIMEOUT", 0.05)
    with processes.locked(project), pytest.raises(RecordError, match="wait until it ends"):
        supervisor.up(project)


def test_killing_up_at_any_moment_loses_no_process(tmp_path: Path, flower: Flower) -> None:
    """The ids are written by the processes: whatever `up` did not live to see is found."""
    project = write_project(tmp_path / "q", sites=["site-1", "site-2"])
    for delay in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0):
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                supervisor.up(project)
            finally:
                os._exit(0)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        supervisor.down(project)
        if of(project):  # one that was only just being started bears its mark a moment later
            supervisor.down(project)
        assert of(project) == [], delay


def test_only_some_are_stopped(project: Project) -> None:
    supervisor.up(project)
    supervisor.down(project, ["site-1"])
    assert {name for name, pid in pids(project).items() if pid} == {"superlink", "site-2"}
    with pytest.raises(ConfigError, match="no process 'site-9': expected superlink, site-1"):
        supervisor.down(project, ["site-9"])


def test_sweeping_ends_even_if_something_is_started_again_and_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = processes.Process(pid=1 << 30, parent=1, started="0", command="again")
    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "SWEEP_TIMEOUT", 0.5)
        patch.setattr(processes, "with_environment", lambda name, value: [stray])
        begun = time.monotonic()
        with pytest.raises(SecedeError, match=r"was started anew, 0\.5 seconds after"):
            supervisor.down(project)
        assert time.monotonic() - begun < 20
