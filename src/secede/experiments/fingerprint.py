"""Digests of what a config only names: a user's own data file and model source."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from secede import files
from secede.errors import DataError
from secede.experiments.config import Config


def fingerprints(config: Config, search: Path | None) -> dict[str, str]:
    """Return a digest for the `.npz` file and for the model's module, where they are the user's."""
    found: dict[str, str] = {}
    if config.data.endswith(".npz"):
        path = Path(config.data)
        if not path.is_file():
            raise DataError(f"{path}: no such file (from the key 'data')")
        found["data"] = files.digest(path)
    if ":" in config.model:
        source = _source(config.model.partition(":")[0], search)
        if source is not None:
            found["model"] = files.digest(source)
    return found


def _source(module: str, search: Path | None) -> Path | None:
    local = (search or Path.cwd()) / Path(*module.split(".")).with_suffix(".py")
    if local.is_file():
        return local
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None  # building the model will say what is wrong
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None
