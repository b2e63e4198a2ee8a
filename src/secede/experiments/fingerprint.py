"""Digests of what a config only names: the files of its data set and a user's model source.

A finished run is recognised by its config; these make sure that it was the same experiment.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import secede
from secede import files
from secede.data import catalog
from secede.data.obtain import obtain
from secede.errors import DataError
from secede.experiments.config import Config


@cache
def own_source() -> str:
    """Return a short digest of secede's own modules: a version says too little of what ran."""
    return source_of(Path(secede.__file__).parent)


def source_of(root: Path) -> str:
    """Return the digest of secede's modules as they lie below `root`."""
    modules = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    return _joint({name: files.digest(path) for name, path in modules.items()})[:16]


def fingerprints(config: Config, search: Path | None) -> dict[str, str]:
    """Return digests of the data files and of a user's own model and methods, with imports."""
    found: dict[str, str] = {}
    if config.data.endswith(".npz"):
        path = Path(config.data)
        if not path.is_file():
            raise DataError(f"{path}: no such file (from the key 'data')")
        found["data"] = files.digest(path)
    elif (entry := catalog.entry(config.data)).needs_network or entry.needs_folder:
        paths = obtain(entry)
        found["data"] = _joint({name: files.digest(path) for name, path in paths.items()})
    if ":" in config.model:
        sources = _sources(config.model.partition(":")[0], search)
        found["model"] = _joint({name: files.digest(path) for name, path in sources.items()})
    for method in config.methods:
        if ":" in method:
            sources = _sources(method.partition(":")[0], search)
            found[method] = _joint({name: files.digest(path) for name, path in sources.items()})
    return found


def _joint(digests: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {digest}" for name, digest in sorted(digests.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _sources(module: str, search: Path | None) -> dict[str, Path]:
    """Return the module's file and those of all modules beside it that it imports."""
    root = search or Path.cwd()
    found: dict[str, Path] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        path = _beside(name, root) or (_installed(name) if name == module else None)
        if path is None or name in found:
            continue
        found[name] = path
        pending += _imports(path, name)
    return found


def _beside(module: str, root: Path) -> Path | None:
    base = root.joinpath(*module.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _installed(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None  # building the model will say what is wrong
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None


def _imports(path: Path, module: str) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # importing it will say what is wrong
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from _with_parents(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level and package else []
            parts = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from _with_parents([base, *(f"{base}.{alias.name}" for alias in node.names)])


def _with_parents(names: Iterator[str] | list[str]) -> Iterator[str]:
    for name in names:
        parts = name.strip(".").split(".")
        yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1) if parts[0])
