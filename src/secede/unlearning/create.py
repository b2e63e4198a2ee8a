"""Create a method by its name and settings; a user's own is `package.module:Class`."""

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
from secede.unlearning.method import LocalStepMethod, Method
from secede.unlearning.registry import Entry, Needs


def create(
    name: str, settings: Mapping[str, Any] | None = None, *, search: Path | None = None
) -> tuple[Entry, Method]:
    """Return the method `name` with its settings, and its entry in the registry.

    A class with `unlearn` is a local step and runs at the leaver; one with `start` runs at the
    server. A user's own class may lie in `search`; its attribute `needs` says what it needs.
    """
    entry, cls = _find(name, search)
    step = _build(name, cls, settings or {})
    return entry, step if callable(getattr(step, "start", None)) else LocalStepMethod(step)


def describe(
    name: str, *, search: Path | None = None
) -> tuple[Entry, dict[str, tuple[str, object]]]:
    """Return a method's entry, and the type and default of each of its settings.

    The default of a required setting is `dataclasses.MISSING`.
    """
    entry, cls = _find(name, search)
    fields = (field for field in dataclasses.fields(cls) if field.init)
    return entry, {field.name: (_type_text(field.type), _default(field)) for field in fields}


def settings_of(method: Method) -> dict[str, object]:
    """Return the settings of a method by name."""
    step: Any = method.step if isinstance(method, LocalStepMethod) else method
    if not dataclasses.is_dataclass(step):
        return {}
    return {
        field.name: getattr(step, field.name) for field in dataclasses.fields(step) if field.init
    }


def _type_text(annotation: object) -> str:
    """Return a field's type as it is written in code, also if its module has evaluated it."""
    text = annotation.__name__ if type(annotation) is type else str(annotation)
    text = re.sub(r"\b(?:typing|collections\.abc)\.", "", text)
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)


def _default(field: dataclasses.Field[Any]) -> object:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _find(name: str, search: Path | None) -> tuple[Entry, type]:
    registry.check_name(name)
    method = registry.base_name(name)
    if method in registry.METHODS:
        entry = registry.METHODS[method]
        module, _, attribute = entry.class_path.partition(":")
        return entry, getattr(import_module(f"secede.unlearning.methods.{module}"), attribute)
    cls = _import_own(method, search)
    return _own_entry(method, cls), cls


def _import_own(name: str, search: Path | None) -> type:
    with importable(search):
        cls = find(name, search, kind="method", form="package.module:Class")
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ConfigError(f"method {name!r}: expected a dataclass whose fields are its settings")
    if not (hasattr(cls, "unlearn") or hasattr(cls, "start")):
        raise ConfigError(
            f"method {name!r}: expected unlearn(task), which runs at the leaver, or start(server)"
        )
    if hasattr(cls, "unlearn") and getattr(cls, "start", None) is Method.start:
        raise ConfigError(
            f"method {name!r}: a local step, with unlearn(task), must not inherit Method, whose "
            "start does nothing; remove the base class"
        )
    return cls


def _own_entry(name: str, cls: type) -> Entry:
    is_local = hasattr(cls, "unlearn")
    needs = getattr(cls, "needs", Needs(leaver_online=is_local))
    if not isinstance(needs, Needs):
        raise ConfigError(f"method {name!r}: its attribute `needs` is {needs!r}, expected a Needs")
    return Entry(
        name=name,
        class_path=name,
        runs_at="leaver" if is_local else "server",
        summary=(cls.__doc__ or "").strip().partition("\n")[0].rstrip("."),
        source="your own",
        needs=needs,
    )


def _build(name: str, cls: type, settings: Mapping[str, Any]) -> Any:
    """Return the method with its settings; raise on wrong names and types."""
    allowed = [field.name for field in dataclasses.fields(cls) if field.init]
    for key in settings:
        if key not in allowed:
            hint = did_you_mean(key, allowed)
            raise ConfigError(
                f"unknown key 'settings.{name}.{key}': {hint}"
                f"allowed here: {', '.join(allowed) or 'none'}"
            )
    try:
        return TypeAdapter(cls).validate_json(as_json(settings), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise ConfigError(f"settings.{name}: {_expected(first['msg'])}") from None
        wrong = first["loc"][0]  # a union has one error for each of its types
        expected = (
            _expected(item["msg"]) for item in error.errors() if item["loc"][:1] == (wrong,)
        )
        raise ConfigError(
            f"settings.{name}.{wrong} is {settings.get(str(wrong))!r}, "
            f"expected {' or '.join(dict.fromkeys(expected))}"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"settings.{name}: {error}") from None


def _expected(message: str) -> str:
    return message.removeprefix("Input should be ").partition(", unable to parse")[0]
