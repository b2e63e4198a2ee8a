"""SecAgg+ on a real deployment: trained, stopped, started again, erased in a second run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.flower import deployed
from harness.paths import HARNESS
from secede import state as states
from secede.erasure.storage.home import Home
from secede.erasure.storage.ledger import Ledger
from secede.flower.deploy import processes, supervisor
from secede.flower.deploy.project import MARK, Project
from secede.flower.storage.round_log import RoundLog

APP = HARNESS / "flower" / "secureapp"
LEAVER, OTHERS = "site-2", {"site-1", "site-3"}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = deployed.make(tmp_path / "north", sites=3)
    shutil.copytree(APP, project.app / "fastapp", dirs_exist_ok=True)
    yield project
    assert processes.with_environment(MARK, str(project.folder)) == []


@contextmanager
def up(project: Project) -> Iterator[Project]:
    with deployed.forked(project):
        try:
            yield supervisor.up(project)
        finally:
            supervisor.down(Project.load(project.folder))


def updates(project: Project) -> dict[str, bytes]:
    """Return some of what each site keeps of itself, and never showed."""
    found: dict[str, bytes] = {}
    for site in project.sites:
        for path in project.updates_folder(site).rglob("*.safetensors"):
            state, _ = states.load(path)
            for name, value in state.items():
                found[f"{site} {path.name} {name}"] = value.numpy().tobytes()
    return found


def seen(project: Project, wanted: dict[str, bytes]) -> list[str]:
    """Tell what of `wanted` is in any file that lies at no site; hiding/ looks at what arrives."""
    found = []
    for path in project.folder.rglob("*"):
        if path.is_file() and project.folder / "sites" not in path.parents:
            content, where = path.read_bytes(), path.relative_to(project.folder)
            found += [f"{where} has {name}" for name, each in wanted.items() if each in content]
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hidden_federation_erases_in_a_second_run(project: Project) -> None:
    with up(project) as first:
        deployed.train(first, rounds=2)
    secret = updates(project)
    assert {name.split()[0] for name in secret} == {LEAVER, *OTHERS}
    with up(Project.load(project.folder)) as again:
        erased = deployed.erase(again, f"name:{LEAVER}")
    assert (erased.client, erased.rung) == (LEAVER, "local-step")
    trained, *_, last = RoundLog(project.home / "rounds.jsonl").rounds()
    assert {each.client for each in trained.clients} == {LEAVER, *OTHERS}
    assert (last.erased, last.model) == (LEAVER, erased.model)
    assert {each.client for each in last.clients} == OTHERS
    with Ledger(Home(project.home).ledger, read_only=True) as ledger:
        assert ledger.verify().number > 0

    assert seen(project, updates(project) | secret) == []
    model, _ = states.load(Home(project.home).model_path(erased.model))
    assert seen(project, {name: value.numpy().tobytes() for name, value in model.items()})
