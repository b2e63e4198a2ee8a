"""The example: in one process here, and as it is run by hand, in Flower's simulation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from flwr.app import Context, RecordDict

from harness.flower.inprocess import InProcess, Site
from harness.paths import ROOT
from secede.flower.deploy import server_home

EXAMPLE = ROOT / "examples" / "hospitals"


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ...]]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from hospitals import client_app, server_app, task  # type: ignore[import-not-found]

    yield client_app, server_app, task
    for name in [name for name in sys.modules if name.split(".")[0] == "hospitals"]:
        del sys.modules[name]


def test_archives_are_unequal_skewed_and_apart(apps: tuple[ModuleType, ...]) -> None:
    *_, task = apps
    found = {site: task.archive(site) for site in task.SITES}
    assert [len(samples) for samples in found.values()] == list(task.SIZES.values())
    rows = torch.cat([samples.x.flatten(1) for samples in found.values()])
    assert len(rows.unique(dim=0)) == len(rows)  # no image lies at two hospitals
    shares = torch.stack([torch.bincount(s.y, minlength=10) / len(s) for s in found.values()])
    assert float((shares.amax(dim=0) / shares.amin(dim=0)).max()) > 5


@pytest.mark.slow
def test_a_hospital_leaves_in_one_process(apps: tuple[ModuleType, ...], tmp_path: Path) -> None:
    client_app, server_app, _ = apps
    config = {"num-partitions": 5, "secede-folder": str(tmp_path / "sites")}
    sites = [Site(name="", node=100 + n, config={"partition-id": n, **config}) for n in range(5)]
    grid = InProcess(sites, client_app.app)
    home = tmp_path / "home"
    run_config: dict[str, bool | float | int | str] = {
        "num-server-rounds": 5,
        "erasure.home": str(home),
        "erasure.leaver": "name:river",
        "erasure.trigger": "contract-ended",
    }
    server_app.app(grid, Context(7, 1, {}, RecordDict(), run_config))
    erased = server_home.verified_result(home, "name:river")
    assert erased.rung == "local-step"
    after = sites[2].seen[sites[2].seen.index("train.unlearn") :]
    counts = ["query.secede"] * 2  # with the models before and after
    assert after == ["train.unlearn", *counts, "query.leave"]  # then nobody asks it any more
    assert "river" in Path(erased.page).read_text()


def test_without_ray_nothing_is_written(tmp_path: Path) -> None:
    program = (
        "import runpy, sys, importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'ray' else find(name, *rest)\n"
        "sys.modules['ray'] = None\nsys.argv = ['run.py', 'simulation', '--folder', 'run']\n"
        f"runpy.run_path({str(EXAMPLE / 'run.py')!r}, run_name='__main__')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("a simulation needs Ray, which is not installed: pip install")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_runs_the_simulation_to_its_receipt(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    command = [sys.executable, str(EXAMPLE / "run.py"), "simulation", "--folder", folder]
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "river is erased by second-choice (local-step)" in ended.stdout
    assert "receipt, verified" in ended.stdout
    assert len(list((tmp_path / "run/home/receipts").glob("*.html"))) == 1
    again = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert again.returncode == 1
    assert "exists: remove it" in again.stderr
