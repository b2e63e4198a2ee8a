from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from torch import nn

from harness.paths import ROOT
from secede.erasure.signing.keys import generate_key_pair, load_private_key, load_public_key
from secede.errors import ConfigError, StorageError
from secede.flower import Store
from secede.flower.deploy import scaffold
from secede.flower.deploy.project import Project
from secede.flower.deploy.scaffold import write_project
from secede.flower.deploy.supervisor import superlink_command, supernode_command

SITES = ("site-1", "site-2")


def test_a_project_is_read_as_it_was_written(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", sites=SITES, hosts=["fl.example.org"], port=9092)
    assert Project.load(tmp_path / "p") == project
    assert project.superlink_address == "fl.example.org:9092"
    assert project.listen == "127.0.0.1"
    config = tomllib.loads((tmp_path / "p/flower/operator/config.toml").read_text())
    link = config["superlink"][config["superlink"]["default"]]
    assert link == {
        "address": "fl.example.org:9092",
        "root-certificates": str(tmp_path / "p/certificates/ca.crt"),
    }


def test_everything_secret_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "p", sites=SITES).folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    secrets = [p for p in folder.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()]
    assert {p.name for p in secrets} == {"ca.key", "server.key", "site-1.key", "site-2.key"}
    assert {stat.S_IMODE(p.stat().st_mode) for p in secrets} == {0o600}
    assert "*.key" in (folder / ".gitignore").read_text()
    assert not any(b"PRIVATE" in p.read_bytes() for p in (folder / "app").rglob("*.*"))


def test_a_new_project_has_the_key_that_requests_name(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", sites=SITES)
    private, public = project.home / "server.key", project.home / "keys" / "server.pub"
    assert stat.S_IMODE(project.home.stat().st_mode) == 0o700
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    key = load_public_key(public).keyid
    assert load_private_key(private).public_key.keyid == key
    assert private.read_bytes() != (project.folder / "certificates/server.key").read_bytes()
    store = Store(project.home, lambda: nn.Linear(2, 2))
    assert store.identity == key  # what clients see later, by the same key


def test_nothing_is_overwritten_and_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/mine").write_text("here")
    with pytest.raises(ConfigError, match="not empty: choose another folder"):
        write_project(tmp_path / "p", sites=SITES)
    assert [path.name for path in tmp_path.rglob("*")] == ["p", "mine"]
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    with pytest.raises(ConfigError, match="choose another folder"):
        write_project(tmp_path / "link", sites=SITES)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    with pytest.raises(StorageError, match="No space left"):
        write_project(tmp_path / "q", sites=SITES)
    assert {path.name for path in tmp_path.iterdir()} == {"p", "link"}
    (tmp_path / "empty").mkdir()
    monkeypatch.undo()
    assert write_project(tmp_path / "empty", sites=SITES).key("site-1").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sites": ["one"]}, "at least two"),
        ({"sites": ["a", "a"]}, "same name"),
        ({"sites": ["a", "b/c"]}, "cannot be used"),
        ({"sites": ["a", "superlink"]}, "take another name"),
        ({"sites": ["a", ".."]}, "cannot be used"),
        ({"hosts": ["a b"]}, "cannot be used"),
        ({"listen": "0.0.0.0 --insecure"}, "cannot be used"),
        ({"port": 70000}, "expected 1 to 65535"),
    ],
)
def test_what_cannot_be_used_is_named_before_anything_is_written(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        write_project(tmp_path / "p", **({"sites": SITES} | changes))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = [", "cannot be read"),
        ('listen = "127.0.0.1"\naddress = "a"\nport = "1"\nsites = []', "port is missing or not"),
        ('listen = "::1"\naddress = "a"\nport = 1\nsites = ["a", "b"]\nx = 1', "unknown key 'x'"),
    ],
)
def test_a_damaged_description_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        Project.load(tmp_path)
    with pytest.raises(ConfigError, match="no Flower project"):
        Project.load(tmp_path / "absent")


def test_the_processes_are_quiet_secure_and_install_nothing(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", sites=SITES)
    link, node = superlink_command(project), supernode_command(project, "site-1", 1234)
    assert "--insecure" not in (*link, *node)
    assert "--enable-supernode-auth" in link
    assert "--disable-runtime-dependency-installation" in link
    assert link[link.index("--host") + 1] == "127.0.0.1"
    assert str(project.key("site-1")) in node
    environment = project.environment("site-1")
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["FLWR_HOME"].startswith(str(project.folder))


def test_the_project_has_the_app_of_the_template(tmp_path: Path) -> None:
    def files(folder: Path) -> dict[str, bytes]:
        paths = (path for path in folder.rglob("*") if path.suffix in (".py", ".toml"))
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    template = files(scaffold.APP)
    assert template
    assert files(write_project(tmp_path / "p", sites=SITES).app) == template


def test_the_example_points_to_the_template() -> None:
    folder = ROOT / "examples" / "quickstart"
    (link,) = re.findall(r"\]\(([^)]*templates/app/)\)", (folder / "README.md").read_text())
    assert (folder / link).resolve() == scaffold.APP


def called(tmp_path: Path, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script with programs that print what they are called with."""
    programs_ = tmp_path / "programs"
    programs_.mkdir(exist_ok=True)
    for name in ("flwr", "flower-superlink", "flower-supernode"):
        (programs_ / name).write_text(
            f"#!{sys.executable}\nimport os, sys\n"
            "print('|'.join([*sys.argv[1:], '']), os.environ['FLWR_HOME'])\n"
        )
        (programs_ / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs_}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [script, *arguments], check=False, capture_output=True, text=True, env=environment, cwd="/"
    )


def test_each_site_has_a_partition_of_its_own(tmp_path: Path) -> None:
    script = write_project(tmp_path / "p", sites=SITES, port=9092).folder / "site.sh"
    for place, site in enumerate(SITES):
        assert f"partition-id={place} num-partitions=2" in called(tmp_path, script, site).stdout
    assert "partition-id=7 " in called(tmp_path, script, "site-1", "7").stdout
    for unknown in (["site-3"], ["site"], []):
        refused = called(tmp_path, script, *unknown)
        assert refused.returncode == 2
        assert "expected one of site-1 site-2" in refused.stderr
        assert refused.stdout == ""


def test_a_site_in_the_account_of_the_home_is_told(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "p", sites=SITES, port=9092).folder
    told = called(tmp_path, folder / "site.sh", "site-1").stderr
    for private in ("home", "certificates/server.key"):
        assert f"a run's code can read {folder / private} in this account" in told
    shutil.rmtree(folder / "home")
    (folder / "certificates" / "server.key").unlink()
    assert called(tmp_path, folder / "site.sh", "site-1").stderr == ""


@pytest.mark.parametrize(
    ("listen", "others"),
    [
        ("127.0.0.1", False),
        ("127.1.2.3", False),
        ("localhost", False),
        ("::1", False),
        ("0.0.0.0", True),
        ("::", True),
        ("192.0.2.7", True),
        ("fl.example.org", True),
    ],
)
def test_whether_others_reach_it_is_known(tmp_path: Path, listen: str, others: bool) -> None:
    project = write_project(tmp_path / "p", sites=SITES, listen=listen, port=9092)
    assert project.open_to_others == others


@pytest.mark.parametrize("script", ["superlink.sh", "site.sh", "register.sh"])
def test_the_scripts_call_flower_with_the_projects_own_files(script: str, tmp_path: Path) -> None:
    folder = write_project(tmp_path / "a folder", sites=SITES, port=9092).folder
    ended = called(tmp_path, folder / script, "site-2", "1")
    assert ended.returncode == 0
    assert str(folder) in ended.stdout
    assert "--insecure" not in ended.stdout
    kept = f'site="site-2" secede-folder="{folder}/sites/site-2"'
    expected = {
        "superlink.sh": "--enable-supernode-auth|",
        "site.sh": f"partition-id=1 num-partitions=2 {kept}",
        "register.sh": "register|nodes/site-2.pub|secede|--name|site-2|",
    }
    assert expected[script] in ended.stdout


def test_a_site_that_made_its_own_key_gives_the_public_one_alone(tmp_path: Path) -> None:
    scaffold.write_node_key(tmp_path / "theirs", "own")
    public = tmp_path / "theirs" / "own.pub"
    project = write_project(tmp_path / "p", sites=SITES, site_keys={"site-2": public})
    assert project.local_sites == ("site-1",)
    assert not project.key("site-2").exists()
    written = project.key("site-2").with_suffix(".pub").read_text()
    assert written == public.read_text().replace(" own\n", " site-2\n")
    secrets = [p for p in project.folder.rglob("*") if p.is_file() and b"PRIVATE" in p.read_bytes()]
    assert {p.name for p in secrets} == {"ca.key", "server.key", "site-1.key"}


def test_a_key_that_a_site_cannot_have_made_for_this_is_refused(tmp_path: Path) -> None:
    scaffold.write_node_key(tmp_path, "own")
    generate_key_pair(tmp_path, "ed25519")
    public = tmp_path / "own.pub"
    for keys, words in (
        ({"site-3": public}, "no site 'site-3'"),
        ({"site-1": tmp_path / "own.key"}, "not an ECDSA P-384 public key .* ssh-keygen"),
        ({"site-1": tmp_path / "ed25519.pub"}, "not an ECDSA P-384 public key"),
        ({"site-1": tmp_path / "absent.pub"}, "cannot read the key"),
        ({"site-1": public, "site-2": public}, "another site's key, too"),
    ):
        with pytest.raises(ConfigError, match=words):
            write_project(tmp_path / "p", sites=SITES, site_keys=keys)
    assert not (tmp_path / "p").exists()
