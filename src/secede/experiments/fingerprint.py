"""Digests of what a config only names, and the environment that a seed is computed in.

A finished run is recognised by its config and the digests of its data files and user's source.
"""

from __future__ import annotations

import ast
import hashlib
import platform
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch

import secede
from secede import files
from secede.data import catalog
from secede.data.obtain import obtain
from secede.errors import DataError
from secede.experiments.config import Config


@cache
def own_source() -> str:
    """Return a short digest of secede's own modules, which says more than a version."""
    return source_of(Path(secede.__file__).parent)


def source_of(root: Path) -> str:
    """Return the digest of the modules below `root`."""
    modules = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    return _joint_digest(modules)[:16]


def fingerprints(config: Config, search: Path | None) -> dict[str, str]:
    """Return digests of the data files and of a user's own model and methods, with imports."""
    digests: dict[str, str] = {}
    if config.data.endswith(".npz"):
        path = Path(config.data)
        if not path.is_file():
            raise DataError(f"{path}: no such file (from the key 'data')")
        digests["data"] = files.digest(path)
    elif (entry := catalog.entry(config.data)).needs_network or entry.needs_folder:
        paths = obtain(entry)
        digests["data"] = _joint_digest(paths)
    if ":" in config.model:
        sources = _sources(config.model.partition(":")[0], search)
        digests["model"] = _joint_digest(sources)
    for method in config.methods:
        if ":" in method:
            sources = _sources(method.partition(":")[0], search)
            digests[method] = _joint_digest(sources)
    return digests


def describe_environment(
    config: Config, executor: str, executor_note: str, lanes: int
) -> dict[str, object]:
    """Return versions, device and threads, which decide how results round."""
    device = config.device
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu"
    return {
        "secede": secede.__version__,
        "source": own_source(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **(_gpu_libraries() if device == "cuda" else {}),
        "device": device,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "executor": executor,
        "executor_note": executor_note,
        "precision": config.precision,
        "lanes": lanes,
    }


def _gpu_libraries() -> dict[str, object]:
    """Return the versions that decide how a GPU rounds."""
    triton = find_spec("triton") and metadata.version("triton")
    cudnn = torch.backends.cudnn.version()
    return {"cuda": torch.version.cuda, "cudnn": cudnn, "triton": triton}


def _joint_digest(paths: Mapping[str, Path]) -> str:
    """Return one digest of files and their names."""
    text = "\n".join(f"{name} {files.digest(path)}" for name, path in sorted(paths.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _sources(module: str, search: Path | None) -> dict[str, Path]:
    """Return the files of a module and of all modules beside it that it imports."""
    root = search or Path.cwd()
    sources: dict[str, Path] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        path = _file_below(name, root) or (_installed_file(name) if name == module else None)
        if path is None or name in sources:
            continue
        sources[name] = path
        pending += _imports(path, name)
    return sources


def _file_below(module: str, root: Path) -> Path | None:
    base = root.joinpath(*module.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _installed_file(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None  # building the model reports what is wrong
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None


def _imports(path: Path, module: str) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # importing it reports what is wrong
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
