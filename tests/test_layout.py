"""A test is found from its module and a module from its test.

`tests/a/test_b.py` or `tests/a/test_b_topic.py` tests `a/b.py` of the source. A test file that
mirrors no module says in its docstring what it is about, and a module without a file of its own
stands in the docstring of the one that tests it, as a path below the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from harness.paths import ROOT, TESTS

SOURCE = ROOT / "src" / "secede"
FILES = sorted(path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
MODULES = sorted(
    path.relative_to(SOURCE)
    for path in SOURCE.rglob("*.py")
    if path.name != "__init__.py" and "templates" not in path.parts
)


def mirrored(file: Path) -> Path | None:
    """Return the module that a test file mirrors; of several the one with the longest name."""
    source = ROOT if file.parts[0] in ("benchmarks", "harness") else SOURCE
    name = file.stem.removeprefix("test_")
    folder = TESTS if file.parts[0] == "harness" else source
    for module in sorted((folder / file.parent).glob("*"), key=lambda path: -len(path.stem)):
        if module.suffix not in ("", ".py") or module.name.startswith(("test_", ".")):
            continue
        stem = "init" if module.stem == "__init__" else module.stem.lstrip("_")
        if name == stem or name.startswith(f"{stem}_"):
            return module.relative_to(folder)
    return None


def docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse((TESTS / file).read_text(encoding="utf-8"))) or ""


def named(file: Path) -> Iterator[Path]:
    """Yield the modules and folders of the source that a test file's docstring names."""
    if file.name != Path(__file__).name:
        yield from map(Path, re.findall(r"`([\w/]+(?:\.py|/))`", docstring(file)))


def test_every_module_has_a_test_that_mirrors_or_names_it() -> None:
    tested = {mirrored(file) for file in FILES}
    tested |= {path for file in FILES for path in named(file)}
    assert [str(path) for path in MODULES if not tested & {path, *path.parents}] == []


def test_a_test_that_mirrors_no_module_says_what_it_is_about() -> None:
    assert [str(file) for file in FILES if not (mirrored(file) or docstring(file))] == []


def test_what_docstrings_name_is_there() -> None:
    gone = {
        f"{file}: {path}" for file in FILES for path in named(file) if not (SOURCE / path).exists()
    }
    assert gone == set()


def test_no_folder_hides_an_installed_package_of_its_name() -> None:
    # tests/ is on the path for harness/. Of one name, a package with an __init__.py is imported
    # wherever it lies, and folders without one are all searched.
    folders = (path for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__")
    for folder in folders:
        assert not (folder / "__init__.py").exists()
        spec = find_spec(folder.name)
        if spec is not None and spec.origin is None:
            locations = spec.submodule_search_locations or ()
            assert [path for path in locations if "site-packages" in path] == []
