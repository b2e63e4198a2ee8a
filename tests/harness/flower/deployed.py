"""A project with a fast app, for tests of real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.flower import forkserver
from secede.flower.deploy import processes, runs, server_home, supervisor
from secede.flower.deploy.project import SUPERLINK, Project
from secede.flower.deploy.scaffold import write_project
from secede.flower.deploy.server_home import ErasureResult

APP = Path(__file__).parent / "app"


def make(folder: Path, *, sites: int) -> Project:
    """Write a project and put the fast app into it."""
    project = write_project(folder, sites=[f"site-{n}" for n in range(1, sites + 1)])
    shutil.rmtree(project.app)
    shutil.copytree(APP, project.app, ignore=shutil.ignore_patterns("__pycache__"))
    return project


@contextmanager
def forked(project: Project) -> Iterator[None]:
    """Have all of Flower's programs forked, which starts them at once, and its waits shortened."""
    own, log = Project.environment, project.log("forks")
    log.parent.mkdir(exist_ok=True)
    with (
        forkserver.serving(project.environment(SUPERLINK), log) as programs,
        pytest.MonkeyPatch.context() as patch,
    ):

        def environment(self: Project, name: str) -> dict[str, str]:
            found = own(self, name)
            return {**found, "PATH": f"{programs}{os.pathsep}{found['PATH']}"}

        patch.setattr(Project, "environment", environment)
        yield


def train(project: Project, *, rounds: int, seconds: float = 240.0) -> None:
    config: runs.Config = {"num-server-rounds": rounds, "erasure.home": str(project.home)}
    runs.run(project, config, timeout=seconds, show=print)


def erase(project: Project, leaver: str, *, seconds: float = 300.0) -> ErasureResult:
    config: runs.Config = {"erasure.home": str(project.home), "erasure.leaver": leaver}
    runs.run(project, config, timeout=seconds, show=print)
    return server_home.verified_result(project.home, leaver)


def knock(project: Project, name: str, seconds: float = 25.0) -> str:
    """Let a SuperNode try to join for some time; return what it printed."""
    command = supervisor.supernode_command(project, name, processes.free_port())
    try:
        ended = subprocess.run(
            [*command, "--max-retries", "2"],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            env=project.environment(name),
        )
        return ended.stdout.decode()
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode()
