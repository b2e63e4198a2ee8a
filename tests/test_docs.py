"""Docs: their links, configs, programs and lists are true."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from harness import tiny
from harness.paths import ROOT
from harness.recorded_progress import RecordedProgress
from secede.experiments.config import Config, parse, resolve_data_path
from secede.experiments.runner import run
from secede.unlearning.registry import METHODS, create

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
READMES = [
    path
    for folder in ("docs/records", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("README.md"))
]


@pytest.mark.parametrize(
    "page", [*PAGES, *READMES], ids=lambda page: f"{page.parent.name}-{page.name}"
)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        assert not anchor or anchor in _anchors(there), target


@pytest.mark.parametrize(
    "page", [*PAGES, *READMES], ids=lambda page: f"{page.parent.name}-{page.name}"
)
def test_modules_that_a_page_names_are_there(page: Path) -> None:
    folders = ("src", "tests", "benchmarks", "examples")
    paths = {str(path) for folder in folders for path in (ROOT / folder).rglob("*.py")}
    named = re.findall(r"`([\w.-]+/[\w./-]+\.py)(?:::[\w-]+)?`", page.read_text())
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in paths)] == []


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize(
    "page", [*PAGES, *READMES], ids=lambda page: f"{page.parent.name}-{page.name}"
)
def test_commits_that_are_named_are_there(page: Path) -> None:
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True)
    if shallow.stdout != b"false\n":
        pytest.skip("no history here")
    for commit in re.findall(r"\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7}\b", page.read_text()):
        found = subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"])
        assert found.returncode == 0, commit


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configs_shown_are_valid(page: Path) -> None:
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.S):
        config = parse(block, name="shown")
        for name in config.methods:
            create(name, config.settings.get(name))
        if page.name == "README.md":  # five lines of one's own are enough
            assert len(block.strip().splitlines()) == 5
            assert config.clients.count == 4


def test_every_key_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "config.md").read_text()
    keys: set[str] = set()
    for name, field in Config.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        keys |= {f"{name}.{key}" for key in inner} if inner else {name}
    documented: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|", text, re.M):
        for key in re.findall(r"`([a-z_.]+)`", row):
            section = re.search(r"`([a-z_]+)\.", row)
            documented.add(f"{section[1]}{key}" if key.startswith(".") and section else key)
    assert keys - documented == {"clients.sizes", "clients.alpha"}  # named in the partition's row
    assert documented <= keys
    assert "clients.sizes" in text
    assert "clients.alpha" in text


def test_the_makefile_has_readmes_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in (ROOT / "README.md").read_text()
        assert re.search(rf"^{command}:", makefile, re.M)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_librarys_example_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "library.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(program, "library.md", "exec"), {"__name__": "library"})
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] in ("stop-distance", "epochs")
    assert int(second.split()[1]) == 2 * 4 * (64 * 32 + 32 + 32 * 3 + 3)


def test_the_pages_own_method_runs_as_written(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "adding-a-method.md").read_text()
    program, local = re.findall(r"```python\n(.*?)```", text, re.S)
    assert all(30 <= len(code.strip().splitlines()) <= 45 for code in (program, local))
    (tmp_path / "softening.py").write_text(program)
    (tmp_path / "blunting.py").write_text(local)
    (shown,) = re.findall(r"```\n(methods = .*?)```", text, re.S)
    both = shown.replace("methods = [", 'methods = ["blunting:Blunt", ')
    config = parse(tiny.CONFIG + both, name="softened")
    tiny.write(tmp_path)
    (folder,) = run(
        [resolve_data_path(config, tmp_path)],
        [0],
        tmp_path / "runs",
        RecordedProgress(),
        search=tmp_path,
    )
    result = json.loads((folder / "seed-0" / "result.json").read_text())
    assert result["reports"]["softening:Soften"] == {"share": 0.7}
    assert result["arms"]["softening:Soften"]["rounds"] == 2
    blunted = result["reports"]["blunting:Blunt"]
    assert blunted["steps"] > 0
    assert blunted["ended_by"] == "epochs"


def test_the_page_on_methods_has_every_one_with_its_needs() -> None:
    rows = {
        row[0]: row
        for line in (ROOT / "docs" / "methods.md").read_text().splitlines()
        if len(row := [cell.strip() for cell in line.strip("|").split("|")]) == 7
    }
    told = {True: "yes", False: "no"}
    for name, entry in METHODS.items():
        needs = entry.needs
        wanted = (needs.leaver_online, needs.history, needs.server_data, not needs.single_updates)
        assert rows[name][1:6] == [entry.runs_at, *(told[need] for need in wanted)], name
