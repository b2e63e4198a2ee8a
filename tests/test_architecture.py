"""What docs/architecture.md promises: its paths exist, and the code is walked as easily as it "
"says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import networkx
import pytest

from benchmarks import structure
from harness.paths import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"`((?:src|tests)/[\w/.-]+)`", PAGE)))


@pytest.fixture(scope="module")
def graph() -> networkx.DiGraph:
    return structure.imports()


def test_every_path_that_the_page_names_exists() -> None:
    assert len(PATHS) >= 40
    assert [path for path in PATHS if not (ROOT / path).exists()] == []


def test_the_page_answers_at_least_forty_questions_and_explains_thirty_words() -> None:
    questions, glossary = PAGE.split("## Where do I")[1].split("## Glossary")
    assert len(re.findall(r"^\| .* \| `(?:src|tests)/", questions, re.MULTILINE)) >= 40
    assert len(re.findall(r"^\| [a-zA-Z-]", glossary, re.MULTILINE)) >= 30


def test_the_page_names_every_package() -> None:
    packages = {path.parent.name for path in structure.SOURCE.glob("*/__init__.py")}
    assert [name for name in sorted(packages) if f"`{name}`" not in PAGE] == []


def test_no_modules_import_each_other_in_a_circle(graph: networkx.DiGraph) -> None:
    assert structure.cycles(graph) == []
    assert structure.cycles(structure.resolved_imports()) == []


def layers() -> dict[str, list[set[str]]]:
    """Return the layers that import-linter holds, highest first, by the package around them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return {
        contract["containers"][0]: [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]
        for contract in contracts
        if contract["type"] == "layers"
    }


@pytest.mark.parametrize("package", layers())
def test_lazily_loaded_names_point_downwards_too(package: str) -> None:
    """import-linter sees an import of the package, and not of the module that a name is in."""
    rank = {part: place for place, parts in enumerate(layers()[package]) for part in parts}

    def part(module: str) -> str:
        return module.removeprefix(f"{package}.").partition(".")[0]

    inside = [
        (one, other)
        for one, other in structure.resolved_imports().edges
        if one.startswith(f"{package}.") and other.startswith(f"{package}.")
    ]
    assert [
        (one, other)
        for one, other in inside
        if part(one) != part(other) and rank[part(one)] >= rank[part(other)]
    ] == []


def test_chains_of_imports_are_short() -> None:
    assert len(networkx.dag_longest_path(structure.resolved_imports(when_loaded=True))) <= 16


def test_modules_import_few_others(graph: networkx.DiGraph) -> None:
    assert graph.number_of_edges() / len(graph) <= 4.2


def test_folders_and_files_are_small() -> None:
    folders = structure.modules_by_folder()
    del folders[str(Path("unlearning") / "methods")]  # one file each
    assert max(folders.values()) <= 12
    assert max(structure.lines_by_file().values()) <= 450
