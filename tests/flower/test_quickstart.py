"""The examples are ordinary Flower apps with ten lines added; these are in the docs and run."""

from __future__ import annotations

import difflib
import importlib
import re
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

PLAIN, OURS = ROOT / "examples" / "plain", ROOT / "examples" / "quickstart"


@pytest.fixture(params=[PLAIN, OURS], ids=["plain", "quickstart"])
def apps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(request.param))
    forget()
    yield (
        request.param,
        *(importlib.import_module(f"quickstart.{n}_app") for n in ("client", "server")),
    )
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        del sys.modules[name]


def files(folder: Path) -> dict[str, list[str]]:
    return {
        str(path.relative_to(folder)): path.read_text().splitlines()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".toml")
    }


def added() -> list[str]:
    plain, ours = files(PLAIN), files(OURS)
    assert plain.keys() == ours.keys()
    lines = list[str]()
    for name in ours:
        diff = difflib.unified_diff(plain[name], ours[name], n=0, lineterm="")
        lines += [line[1:] for line in diff if re.match(r"\+(?!\+\+)", line)]
    return lines


def test_ten_lines_or_fewer_are_added_and_the_docs_show_each() -> None:
    lines, page = added(), (ROOT / "docs" / "flower.md").read_text()
    assert 5 <= len(lines) <= 10
    shown, _ = re.findall(r"```diff\n(.*?)```", page, re.S)  # the other is SecAgg+'s
    told = [line[1:] for line in shown.splitlines() if re.match(r"\+(?!\+\+)", line)]
    assert sorted(told) == sorted(lines)


def test_the_page_says_which_methods_and_strategies_work() -> None:
    from secede.flower.rounds.supported_strategies import WORK
    from secede.unlearning.client_tasks import LIVE

    page = (ROOT / "docs" / "flower.md").read_text()
    assert all(name in page for name in (*LIVE, *WORK))


def test_it_trains_and_ours_erases_in_a_second_run(apps: Any, tmp_path: Path) -> None:
    folder, client, server = apps
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    config = dict(project["tool"]["flwr"]["app"]["config"])
    for key, value in config.pop("erasure", {}).items():
        config[f"erasure.{key}"] = value  # as Flower flattens it
    config["erasure.home"] = str(tmp_path / "home")

    def run(number: int, **changes: Any) -> InProcess:
        grid = InProcess(sites(5, tmp_path), client.app, run=number)
        told = {**config, **changes}
        server.app(grid, Context(number, 0, {}, RecordDict(), told))
        return grid

    run(1)
    if folder == PLAIN:
        assert not (tmp_path / "home").exists()
        return
    grid = run(2, **{"erasure.leaver": "name:site-1", "erasure.trigger": "objection"})
    assert [site.name for site in grid.sites.values() if "train.unlearn" in site.seen] == ["site-1"]
    (path,) = (tmp_path / "home" / "receipts").glob("*.json")
    verify_receipt(path.read_bytes(), Keyring.load(tmp_path / "home" / "keys"))


# The same under SecAgg+: both apps are in the docs alone


def shown() -> list[str]:
    _, found = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "flower.md").read_text(), re.S)
    return str(found).splitlines()


def secure_app(which: str, *, ours: bool) -> Any:
    """Return one of the two apps, before the lines are added or after."""
    lines, name = list[str](), ""
    for line in shown():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ ")
        elif line[:1] not in ("@", "-" if ours else "+") and name == f"{which}_app.py":
            lines += [line[1:]] if not line.startswith("---") else []
    module: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"{which}_app.py", "exec"), module)
    return module["app"]


def test_under_secagg_ten_lines_or_fewer_are_added_too() -> None:
    lines = [line for line in shown() if re.match(r"\+(?!\+\+)", line)]
    assert 5 <= len(lines) <= 8  # and two in pyproject.toml, as above


def test_an_app_under_secagg_trains_and_ours_erases_in_a_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PLAIN))
    forget()
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
    forget()
