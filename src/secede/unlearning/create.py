"""From a method's name and settings to the method; a user's own is `package.module:Class`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from secede.errors import ConfigError, did_you_mean
from secede.plugins import find, importable
from secede.strict import as_json
from secede.unlearning import registry
from secede.unlearning.method import AtLeaver, Method
from secede.unlearning.registry import Entry, Needs


def create(
    name: str, settings: Mapping[str, Any] | None = None, *, search: Path | None = None
) -> tuple[Entry, Method]:
    """Return the method called `name` with its settings, and its entry in the table.

    A class with `unlearn` is a local step and runs at the leaver, one with `start` at the server.
    A user's own may also lie in `search`; what it needs, it says in an attribute `needs`.
    """
    entry, made = _find(name, search)
    step = _build(name, made, settings or {})
    return entry, step if callable(getattr(step, "start", None)) else AtLeaver(step)


def described(
    name: str, *, search: Path | None = None
) -> tuple[Entry, dict[str, tuple[str, object]]]:
    """Return a method's entry and each of its settings: what it may be, as written, and default.

    One that must be given has `dataclasses.MISSING` for its default.
    """
    entry, made = _find(name, search)
    fields = (field for field in dataclasses.fields(made) if field.init)
    return entry, {field.name: (_written(field.type), _default(field)) for field in fields}


def settings_of(method: Method) -> dict[str, object]:
    """Return each setting of a method and its value."""
    made: Any = method.step if isinstance(method, AtLeaver) else method
    if not dataclasses.is_dataclass(made):
        return {}
    return {
        field.name: getattr(made, field.name) for field in dataclasses.fields(made) if field.init
    }


def _written(kind: object) -> str:
    """Return a field's type as it is written, also where its module has evaluated it."""
    text = kind.__name__ if type(kind) is type else str(kind)
    text = re.sub(r"\b(?:typing|collections\.abc)\.", "", text)
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)


def _default(field: dataclasses.Field[Any]) -> object:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _find(name: str, search: Path | None) -> tuple[Entry, type]:
    registry.check_name(name)
    known = registry.plain(name)
    if known in registry.METHODS:
        entry = registry.METHODS[known]
        module, _, attribute = entry.made_by.partition(":")
        return entry, getattr(import_module(f"secede.unlearning.methods.{module}"), attribute)
    made = _own(known, search)
    return _entry(known, made), made


def _own(name: str, search: Path | None) -> type:
    with importable(search):
        made = find(name, search, kind="method", form="package.module:Class")
    if not (isinstance(made, type) and dataclasses.is_dataclass(made)):
        raise ConfigError(f"method {name!r}: expected a dataclass, its fields are its settings")
    if not (hasattr(made, "unlearn") or hasattr(made, "start")):
        raise ConfigError(
            f"method {name!r}: expected unlearn(task), which runs at the leaver, or start(server)"
        )
    if hasattr(made, "unlearn") and getattr(made, "start", None) is Method.start:
        raise ConfigError(
            f"method {name!r}: a local step, with unlearn(task), must not be a Method, whose start "
            "does nothing; leave the base class out"
        )
    return made


def _entry(name: str, made: type) -> Entry:
    local = hasattr(made, "unlearn")
    needs = getattr(made, "needs", Needs(leaver_online=local))
    if not isinstance(needs, Needs):
        raise ConfigError(f"method {name!r}: its attribute `needs` is {needs!r}, expected a Needs")
    return Entry(
        name=name,
        made_by=name,
        runs_at="leaver" if local else "server",
        summary=(made.__doc__ or "").strip().partition("\n")[0].rstrip("."),
        source="your own",
        needs=needs,
    )


def _build(name: str, made: type, settings: Mapping[str, Any]) -> Any:
    """Return the method with its settings; wrong names and types raise."""
    allowed = [field.name for field in dataclasses.fields(made) if field.init]
    for key in settings:
        if key not in allowed:
            hint = did_you_mean(key, allowed)
            raise ConfigError(
                f"unknown key 'settings.{name}.{key}': {hint}"
                f"allowed here: {', '.join(allowed) or 'none'}"
            )
    try:
        return TypeAdapter(made).validate_json(as_json(settings), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise ConfigError(f"settings.{name}: {_expected(first['msg'])}") from None
        wrong = first["loc"][0]  # of several types that it may have, each tells what it expects
        told = (_expected(item["msg"]) for item in error.errors() if item["loc"][:1] == (wrong,))
        raise ConfigError(
            f"settings.{name}.{wrong} is {settings.get(str(wrong))!r}, "
            f"expected {' or '.join(dict.fromkeys(told))}"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"settings.{name}: {error}") from None


def _expected(message: str) -> str:
    return message.removeprefix("Input should be ").partition(", unable to parse")[0]
