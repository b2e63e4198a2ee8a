"""Sites in accounts of their own, with small programs in the place of Flower's.

Tests `flower/deploy/in_account.py` too, and what `up` does with accounts.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.lines import Lines
from secede.errors import ConfigError, SecedeError
from secede.flower.deploy import processes, site_accounts, supervisor
from secede.flower.deploy.project import MARK, Project
from secede.flower.deploy.scaffold import write_project

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
ACCOUNTS = {"site-1": "nobody", "site-2": "daemon"}  # every system has these two
# It says who it is and what it can read, and has its key in its command line, as a SuperNode.
NODE = (
    'echo "SuperNode ID: $2"; echo "I am $(id -u):$(id -g) of $(id -G) in $PWD"; '
    'for p in "$1" "$3" "$4"; do cat "$p" > /dev/null && echo "read $p"; done; sleep 600 & wait'
)


@pytest.fixture
def around() -> Iterator[Path]:
    """Yield a folder that all accounts reach: pytest's own is closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="secede-accounts-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def project(around: Path) -> Project:
    made = write_project(around / "p", sites=["site-1", "site-2"])
    return replace(made, accounts=ACCOUNTS)


@pytest.fixture
def any_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept this Python, which may be in a folder of root's own: the sites here need none."""
    monkeypatch.setattr(site_accounts, "_check_python", lambda project, site, account: None)


def reads(name: str, path: Path) -> bool:
    command = site_accounts.find(name).command(Path("/"), ["/bin/cat", str(path)])
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_one_account_is_for_all_sites_and_others_are_named_by_site() -> None:
    sites = ("a", "b")
    assert site_accounts.parse([], sites) == {}
    assert site_accounts.parse(["x"], sites) == {"a": "x", "b": "x"}
    assert site_accounts.parse(["b=y", "a=x"], sites) == {"a": "x", "b": "y"}
    assert site_accounts.parse(["b=y", "x"], sites) == {"a": "x", "b": "y"}


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["c=x"], "one account for each of a, b"),
        (["a=x", "a=y"], "one account for each of a, b"),
        (["x", "y"], "given 2 times"),
        (["a=x"], "no account for b"),
    ],
)
def test_accounts_that_leave_a_site_unclear_are_refused(texts: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        site_accounts.parse(texts, ("a", "b"))


def test_an_account_for_no_site_is_refused() -> None:
    with pytest.raises(ConfigError, match="no site has its private key here"):
        site_accounts.parse(["x"], ())


@pytest.mark.parametrize(
    ("name", "told"),
    [("no-such-account", "no account 'no-such"), ("", "no account"), ("root", "is root's")],
)
def test_an_account_must_exist_and_not_be_roots(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        site_accounts.find(name)


def test_the_accounts_are_kept_in_the_project(project: Project) -> None:
    project.write()
    assert Project.load(project.folder) == project
    file = project.folder / "federation.toml"
    file.write_text(file.read_text().replace('"site-2" =', '"site-9" ='))
    with pytest.raises(ConfigError, match="accounts must name sites only"):
        Project.load(project.folder)


def test_a_site_inherits_no_secret_of_roots_environment(project: Project) -> None:
    values = {**project.environment("site-1"), "AWS_SECRET_ACCESS_KEY": "x", "LC_ALL": "C"}
    kept = site_accounts.environment(values, site_accounts.Account("fl-1", 1, 1))
    assert "AWS_SECRET_ACCESS_KEY" not in kept
    assert kept["HOME"] == kept["FLWR_HOME"] == str(project.folder / "flower" / "site-1")
    assert (kept["USER"], kept["LC_ALL"], kept[MARK]) == ("fl-1", "C", str(project.folder))


def test_only_root_can_do_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"for root alone.* with site\.sh"):
        site_accounts.prepare(project)


def test_the_script_never_runs_a_program_as_root() -> None:
    script = Path(site_accounts.__file__).with_name("in_account.py")
    for ids in (("0", "1"), ("1", "0")):
        command = [sys.executable, "-I", str(script), *ids, "/", "/bin/echo", "ran"]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "is root's" in ended.stderr


@as_root
def test_the_script_gives_up_the_groups_of_its_starter() -> None:
    account = site_accounts.find("nobody")
    told = subprocess.run(
        account.command(Path("/"), ["/bin/sh", "-c", "id -G; umask"]),
        check=True,
        capture_output=True,
        text=True,
        extra_groups=[12, 13],
    )
    assert told.stdout.split() == [str(account.group), "0077"]


@as_root
@pytest.mark.usefixtures("any_python")
def test_each_site_gets_its_own_and_nothing_else_is_open(project: Project) -> None:
    (project.updates_folder("site-1") / "kept").write_text("an update")
    (project.folder / "notes").mkdir(mode=0o755)
    site_accounts.prepare(project)
    site_accounts.prepare(project)  # again, as a second `up` does
    modes = {
        str(path.relative_to(project.folder)): (path.owner(), stat.S_IMODE(path.stat().st_mode))
        for path in project.folder.rglob("*")
    }
    assert stat.S_IMODE(project.folder.stat().st_mode) == 0o711
    owned = {name for name, (owner, _) in modes.items() if owner == "nobody"}
    assert owned == {"nodes/site-1.key", "sites/site-1", "sites/site-1/kept", "flower/site-1"}
    top = {name: mode for name, (_, mode) in modes.items() if name.count("/") == 0}
    assert {name for name, mode in top.items() if mode & 0o077} == {
        *("certificates", "nodes", "sites", "flower")
    }
    assert {top[name] for name in ("certificates", "nodes", "sites", "flower")} == {0o711}
    below = {n: m for n, (_, m) in modes.items() if n.split("/")[0] in ("certificates", "nodes")}
    assert {n for n, m in below.items() if m & 0o077} - set(top) == {"certificates/ca.crt"}


@as_root
@pytest.mark.usefixtures("any_python")
def test_a_sites_account_reads_its_own_and_nobody_elses(project: Project) -> None:
    site_accounts.prepare(project)
    tls, own = project.certificates, [project.key("site-1"), project.authority]
    secret = [project.home / "server.key", tls / "ca.key", tls / "server.key"]
    secret += [project.key("site-2"), project.app / "pyproject.toml"]
    assert all(path.is_file() for path in (*own, *secret))
    assert [reads("nobody", path) for path in own] == [True] * len(own)
    assert [reads("nobody", path) for path in secret] == [False] * len(secret)
    assert reads("daemon", project.key("site-2"))


@as_root
@pytest.mark.usefixtures("any_python")
def test_a_folder_that_the_account_does_not_reach_is_named(project: Project) -> None:
    project.folder.parent.chmod(0o700)
    told = f"'nobody' cannot get to the project's folder: {project.folder.parent} is closed"
    with pytest.raises(ConfigError, match=told):
        site_accounts.prepare(project)
    assert project.key("site-1").owner() == "root"  # nothing was changed


@as_root
@pytest.mark.parametrize(
    ("mode", "code", "told"),
    [
        (0o700, 0, "cannot get to Python"),
        (0o755, 1, "cannot use .*python3: no flwr; install it for all accounts"),
        (0o777, 0, "can change"),
    ],
)
def test_a_python_that_the_account_cannot_use_or_could_change_is_named(
    project: Project, monkeypatch: pytest.MonkeyPatch, mode: int, code: int, told: str
) -> None:
    folder = project.folder.parent / "python"
    folder.mkdir()
    folder.chmod(mode)
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\necho no flwr >&2\nexit {code}\n")
    python.chmod(0o755)
    monkeypatch.setattr(site_accounts, "_programs", lambda values: [str(python)])
    with pytest.raises(ConfigError, match=told) as shown:
        site_accounts._check_python(project, "site-1", site_accounts.find("nobody"))
    assert str(folder) in str(shown.value)
    folder.chmod(0o755)
    python.write_text("#!/bin/sh\n")
    site_accounts._check_python(project, "site-1", site_accounts.find("nobody"))


@as_root
def test_a_site_without_an_account_is_not_started_as_root(project: Project) -> None:
    with pytest.raises(ConfigError, match="no account for site-2"):
        site_accounts.prepare(replace(project, accounts={"site-1": "nobody"}))


@as_root
@pytest.mark.usefixtures("any_python")
def test_what_is_not_roots_own_is_never_given_away(project: Project) -> None:
    updates = project.updates_folder("site-1")
    os.chown(updates, 1, 1)  # an earlier account's, who may have put links there
    with pytest.raises(ConfigError, match=r"site-1 is a link or of account number 1, and not"):
        site_accounts.prepare(project)
    updates.rmdir()
    updates.symlink_to(project.home)
    with pytest.raises(ConfigError, match=r"site-1 is a link"):
        site_accounts.prepare(project)
    assert project.home.owner() == "root"
    os.chown(project.folder, 65534, 65534)
    with pytest.raises(ConfigError, match=r"is not root's own folder.*chown -R root"):
        site_accounts.prepare(project)


@as_root
@pytest.mark.usefixtures("any_python")
def test_a_link_in_a_sites_folder_is_given_away_and_not_what_it_leads_to(project: Project) -> None:
    link = project.updates_folder("site-1") / "link"
    link.symlink_to(project.home / "server.key")
    site_accounts.prepare(project)
    assert link.lstat().st_uid == site_accounts.find("nobody").user
    assert (project.home / "server.key").stat().st_uid == 0


@as_root
@pytest.mark.usefixtures("any_python")
def test_a_right_that_remains_is_found_before_a_site_starts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = site_accounts._close

    def all_but_home(project: Project) -> None:
        close(project)
        project.home.chmod(0o755)  # as an access list would

    monkeypatch.setattr(site_accounts, "_close", all_but_home)
    with pytest.raises(ConfigError, match=rf"'nobody' can read {project.home}: expected"):
        site_accounts.prepare(project)


@as_root
@pytest.mark.usefixtures("any_python")
def test_a_signing_key_that_root_put_there_is_named(project: Project) -> None:
    site_accounts.prepare(project)
    key = project.updates_folder("site-1") / "site-1.key"
    key.touch(mode=0o600)
    with pytest.raises(ConfigError, match=f"cannot get to what site-1 needs: {key} is closed"):
        site_accounts.prepare(project)


@pytest.fixture
def started(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Yield a project whose programs are small ones, without accounts so far."""
    ids = {"site-1": "101", "site-2": "102"}

    def node(project: Project, site: str, port: int) -> list[str]:
        secret = [str(project.home / "server.key"), str(project.state / f"{site}.pid")]
        return ["/bin/sh", "-c", NODE, "sh", str(project.key(site)), ids[site], *secret]

    def link(project: Project) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(600)", str(project.database)]

    fakes = {"supernode_command": node, "superlink_command": link}
    fakes |= {"register_site": lambda project, site: ids[site], "_wait_answer": lambda *_: None}
    fakes |= {"node_statuses": lambda project: dict.fromkeys(ids.values(), "online")}
    for name, fake in fakes.items():
        monkeypatch.setattr(supervisor, name, fake)
    yield replace(project, accounts={})
    supervisor.down(Project.load(project.folder))
    assert processes.with_environment(MARK, str(project.folder)) == []


def ids_of(project: Project, name: str) -> dict[str, list[str]]:
    process = processes.running(project, name)
    assert process is not None
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    values = {key: rest.split() for key, _, rest in (line.partition(":") for line in lines)}
    return {key: values[key] for key in ("Uid", "Gid", "Groups", "CapEff", "CapPrm")}


@as_root
@pytest.mark.usefixtures("any_python")
def test_up_starts_each_site_in_its_account_and_remembers_it(started: Project) -> None:
    logged = Lines()
    up = supervisor.up(started, accounts=ACCOUNTS)
    for site, name in ACCOUNTS.items():
        account = site_accounts.find(name)
        assert ids_of(up, site) == {
            "Uid": [str(account.user)] * 4,
            "Gid": [str(account.group)] * 4,
            "Groups": [],
            "CapEff": ["0" * 16],
            "CapPrm": ["0" * 16],
        }
        said = up.log(site).read_text()
        mine = f"{account.user}:{account.group} of {account.group} in {up.folder}/flower/{site}\n"
        assert f"I am {mine}" in said
        assert said.count("Permission denied") == 2  # home/server.key, and its own process id
        assert [line for line in said.splitlines() if line[:4] == "read"] == [
            f"read {up.key(site)}"
        ]
    assert ids_of(up, "superlink")["Uid"] == ["0"] * 4
    assert (up.state / "site-1.pid").owner() == up.log("site-1").owner() == "root"
    assert logged.has("cannot read", str(up.home), "site-1 as nobody, site-2 as daemon")
    assert Project.load(up.folder).accounts == ACCOUNTS

    supervisor.down(up, ["site-1"])
    supervisor.up(Project.load(up.folder))  # without the option
    assert ids_of(up, "site-1")["Uid"][0] == str(site_accounts.find("nobody").user)
    assert {row.online for row in supervisor.status(up)} == {"yes"}


@as_root
@pytest.mark.usefixtures("any_python")
def test_sites_that_run_in_another_account_are_stopped_first(started: Project) -> None:
    logged = Lines()
    up = supervisor.up(started)
    assert logged.has("sites run in this account", "--site-account SITE=ACCOUNT")
    with pytest.raises(
        ConfigError, match=r"site-1, site-2: still in the account of an earlier start"
    ):
        supervisor.up(up, accounts=ACCOUNTS)
    assert Project.load(up.folder).accounts == {}
    supervisor.down(up, ["site-1", "site-2"])
    supervisor.up(up, accounts=dict.fromkeys(up.sites, "nobody"))
    assert logged.has("cannot read", "those that share one read each other's")


@as_root
@pytest.mark.usefixtures("any_python")
def test_accounts_that_do_not_work_are_not_remembered(started: Project) -> None:
    started.folder.parent.chmod(0o700)
    with pytest.raises(SecedeError, match="cannot get to the project's folder"):
        supervisor.up(started, accounts=ACCOUNTS)
    assert Project.load(started.folder).accounts == {}
    assert processes.running(started, "superlink") is None
