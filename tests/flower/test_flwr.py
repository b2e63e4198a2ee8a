"""Flower's internals are imported in one file, so that a release of Flower is a diff of that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from harness.paths import ROOT

SOURCES = ROOT / "src" / "secede"
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_one_file_imports_what_flower_does_not_call_public() -> None:
    found = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        for module in imported(path)
        if module.partition(".")[0] == "flwr" and module not in PUBLIC
    }
    assert found == {"flower/_flwr.py"}


def test_only_the_adapters_import_flower() -> None:
    found = {
        path.relative_to(SOURCES).parts[0]
        for path in SOURCES.rglob("*.py")
        for module in imported(path)
        if module.partition(".")[0] == "flwr"
    }
    assert found == {"flower", "nvflare"}
