"""The example app is an ordinary Flower app with ten lines added: the docs show them, both run."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from harness.flower.inprocess import InProcess, sites
from harness.paths import ROOT
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.signing.keys import Keyring
from secede.flower.deploy import scaffold


def diffs() -> tuple[str, str]:
    """Return the diffs of the page: of the example app, and of one under SecAgg+."""
    app, secure = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "flower.md").read_text(), re.S)
    return app, secure


def additions(diff: str) -> list[str]:
    return [line[1:] for line in diff.splitlines() if re.match(r"\+(?!\+\+)", line)]


def undo(diff: str, folder: Path) -> None:
    """Take the lines that a diff adds out of an app; each hunk must be in it, to the letter."""
    for part in re.split(r"^--- .*\n\+\+\+ ", diff, flags=re.M)[1:]:
        name, *hunks = part.split("@@\n")
        path = folder / name.strip()
        text = path.read_text()
        for hunk in hunks:
            lines = [line or " " for line in hunk.splitlines()]
            added = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
            before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
            assert text.count(added) == 1, hunk
            text = text.replace(added, before)
        path.write_text(text)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Return a copy of the example app without the lines that the page shows."""
    folder = tmp_path / "plain"
    shutil.copytree(scaffold.APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    undo(diffs()[0], folder)
    return folder


def imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Import an app's two halves from a folder."""
    monkeypatch.syspath_prepend(str(folder))
    forget()
    client, server = (importlib.import_module(f"quickstart.{n}_app") for n in ("client", "server"))
    return client.app, server.app


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        del sys.modules[name]


def test_ten_lines_or_fewer_are_added_to_an_app_without_secede(plain: Path) -> None:
    assert 5 <= len(additions(diffs()[0])) <= 10
    assert not any("secede" in path.read_text() for path in plain.rglob("*.py"))
    lines = (plain / "pyproject.toml").read_text().splitlines()
    assert [line for line in lines if "secede" in line] == ['publisher = "secede"']


def test_the_page_says_which_methods_and_strategies_work() -> None:
    from secede.flower.rounds.supported_strategies import SUPPORTED
    from secede.unlearning.client_tasks import LIVE

    page = (ROOT / "docs" / "flower.md").read_text()
    assert all(name in page for name in (*LIVE, *SUPPORTED))


def configured(folder: Path, home: Path) -> dict[str, Any]:
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    config = dict(project["tool"]["flwr"]["app"]["config"])
    for key, value in config.pop("erasure", {}).items():
        config[f"erasure.{key}"] = value  # as Flower flattens it
    return config | {"erasure.home": str(home)}


def test_the_app_without_the_lines_trains(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = imported(plain, monkeypatch)
    grid = InProcess(sites(5, tmp_path), client, run=1)
    server(grid, Context(1, 0, {}, RecordDict(), configured(plain, tmp_path / "home")))
    assert all("train" in site.seen for site in grid.sites.values())
    assert not (tmp_path / "home").exists()


def test_the_app_trains_and_erases_in_a_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = imported(scaffold.APP, monkeypatch)
    config = configured(scaffold.APP, tmp_path / "home")

    def run(number: int, **changes: Any) -> InProcess:
        grid = InProcess(sites(5, tmp_path), client, run=number)
        server(grid, Context(number, 0, {}, RecordDict(), {**config, **changes}))
        return grid

    run(1)
    grid = run(2, **{"erasure.leaver": "name:site-1", "erasure.trigger": "objection"})
    assert [site.name for site in grid.sites.values() if "train.unlearn" in site.seen] == ["site-1"]
    (path,) = (tmp_path / "home" / "receipts").glob("*.json")
    verify_receipt(path.read_bytes(), Keyring.load(tmp_path / "home" / "keys"))


# The same under SecAgg+: both apps are in the docs alone


def secure_app(which: str, *, ours: bool) -> Any:
    """Return one of the two apps, before the lines are added or after."""
    lines, name = list[str](), ""
    for line in diffs()[1].splitlines():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ ")
        elif line[:1] not in ("@", "-" if ours else "+") and name == f"{which}_app.py":
            lines += [line[1:]] if not line.startswith("---") else []
    module: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"{which}_app.py", "exec"), module)
    return module["app"]


def test_under_secagg_ten_lines_or_fewer_are_added_too() -> None:
    assert 5 <= len(additions(diffs()[1])) <= 8  # and two in pyproject.toml, as above


def test_an_app_under_secagg_trains_and_ours_erases_in_a_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(scaffold.APP))
    config: dict[str, Any] = {"num-server-rounds": 4, "learning-rate": 0.1}
    config["erasure.home"] = str(tmp_path / "home")

    def run(number: int, *, ours: bool, **changes: Any) -> InProcess:
        grid = InProcess(sites(5, tmp_path), secure_app("client", ours=ours), run=number)
        told = {**config, **changes}
        secure_app("server", ours=ours)(grid, Context(number, 0, {}, RecordDict(), told))
        return grid

    before = run(1, ours=False)
    assert all(site.seen == ["train"] * 16 for site in before.sites.values())
    assert not (tmp_path / "home").exists()
    run(2, ours=True)
    asked = {"erasure.leaver": "name:site-1", "erasure.trigger": "objection"}
    grid = run(3, ours=True, **asked)
    assert [site.name for site in grid.sites.values() if "train.unlearn" in site.seen] == ["site-1"]
    (path,) = (tmp_path / "home" / "receipts").glob("*.json")
    verify_receipt(path.read_bytes(), Keyring.load(tmp_path / "home" / "keys"))
