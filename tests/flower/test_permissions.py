"""What the server and its clients keep is for their own account alone, whatever the umask."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.flower.small import SIZES, Federation
from secede.flower.deploy import processes, write_pid
from secede.flower.deploy.scaffold import write_project


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def too_open(folder: Path) -> list[str]:
    return [
        f"{path} {path.stat().st_mode & 0o777:o}"
        for path in (folder, *folder.rglob("*"))
        if path.stat().st_mode & (0o033 if path.suffix == ".pub" else 0o077)  # public keys
    ]


def test_home_and_clients_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    with federation.store.lock():
        pass
    federation.train(2)
    assert too_open(tmp_path / "home") == []
    assert federation.erase("name:site-1").state == "promoted"
    federation.train(1)
    for folder in ("home", *(f"disk-{n}" for n in range(len(SIZES)))):
        assert too_open(tmp_path / folder) == []


def test_what_a_started_program_makes_is_for_its_owner_alone(tmp_path: Path) -> None:
    program = "import pathlib; pathlib.Path('superlink.db').touch(); pathlib.Path('a').mkdir()"
    command = [sys.executable, "-I", str(write_pid.__file__), str(tmp_path / "link.pid")]
    subprocess.run([*command, sys.executable, "-c", program], check=True, cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"superlink.db", "a", "link.pid"}
    assert not any(too_open(path) for path in tmp_path.iterdir())


def test_the_folders_of_a_projects_processes_are_for_their_owner_alone(tmp_path: Path) -> None:
    project = write_project(tmp_path / "north", sites=("site-0", "site-1"))
    with processes.locked(project):
        processes.write_registered(project, {"site-0": "1"})
    assert too_open(project.state) == []


@pytest.mark.parametrize("script", ["superlink.sh", "site.sh"])
def test_programs_started_by_hand_make_files_for_their_owner_alone(
    tmp_path: Path, script: str
) -> None:
    project = write_project(tmp_path / "north", sites=("site-0", "site-1"))
    (found,) = project.folder.rglob(script)
    assert "\numask 077\n" in found.read_text(encoding="utf-8")
