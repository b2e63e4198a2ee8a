"""Plugins: a user's own code, named `package.module:attribute`, on the path or beside a config."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from secede.errors import ConfigError
from secede.text import describe_exception


@contextmanager
def importable(search: Path | None) -> Iterator[None]:
    """Make the modules in the folder `search` importable in the block."""
    if search is None:
        yield
        return
    entry = str(search.resolve())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        # The user's module may have changed the list itself, so look for the entry again.
        if entry in sys.path:
            sys.path.remove(entry)


def find(value: str, search: Path | None, *, kind: str, form: str) -> object:
    """Import the object that `value` names; errors name its `kind` and the expected `form`.

    Call it in `importable(search)`.
    """
    path, _, attribute = value.partition(":")
    if not all(part.isidentifier() for part in (*path.split("."), attribute)) or path[-3:] == ".py":
        raise error_in(kind, value, f"expected the form {form}, dotted and without .py")
    module = _load(kind, value, path)
    _check_origin(kind, value, module, path, search)
    try:
        plugin: object = getattr(module, attribute)
    except AttributeError:
        raise error_in(kind, value, f"module {path!r} has no {attribute!r}") from None
    return plugin


def error_in(kind: str, value: str, problem: str) -> ConfigError:
    """Return the error for a problem with a user's own code."""
    return ConfigError(f"{kind} {value!r}: {problem}")


def _load(kind: str, value: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{path}.".startswith(f"{missing}."):
            problem = (
                f"there is no module {path!r} on the Python path or beside the config "
                "(PYTHONPATH=. puts this folder on it)"
            )
            raise error_in(kind, value, problem) from error
        raise error_in(
            kind, value, f"importing {path!r} failed: {describe_exception(error)}"
        ) from error


def _check_origin(
    kind: str, value: str, module: ModuleType, path: str, search: Path | None
) -> None:
    """Refuse a module of the same name that was loaded earlier from somewhere else."""
    file = getattr(module, "__file__", None)  # absent where a module is built in
    if search is None or file is None:
        return
    expected = search.resolve().joinpath(*path.split("."))
    candidates = (expected.with_suffix(".py"), expected / "__init__.py")
    loaded = Path(file).resolve()
    if any(own.exists() and own.resolve() != loaded for own in candidates):
        problem = f"{path!r} is already loaded from {loaded}; rename yours in {search}"
        raise error_in(kind, value, problem)
