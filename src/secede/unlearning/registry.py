"""The registry of methods: their names, where they run, what they need, and how to create one.

A user's own method is `package.module:Class`. Imports no torch until a method is created.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from secede.errors import ConfigError, did_you_mean
from secede.plugins import find, importable
from secede.strict import as_json

if TYPE_CHECKING:
    from secede.unlearning.method import Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """What a method needs to run."""

    leaver_online: bool = False
    history: bool = False
    server_data: bool = False
    single_updates: bool = False  # then it does not work under secure aggregation

    def words(self) -> tuple[str, ...]:
        """Return the needs in words."""
        return tuple(word for key, word in _WORDS.items() if getattr(self, key))


_WORDS = {
    "leaver_online": "the leaver online",
    "history": "stored history",
    "server_data": "data at the server",
    "single_updates": "single updates",
}

# The config keys that tell whether a federation has what a method needs.
_KEYS = {
    **{need: f"situation.{need}" for need in _WORDS},
    "single_updates": "situation.secure_aggregation",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Situation:
    """What a federation has for a method to use."""

    leaver_online: bool = True
    history: bool = False
    server_data: bool = False
    single_updates: bool = True  # False under secure aggregation

    def missing(self, needs: Needs) -> dict[str, str]:
        """Return the missing needs in words, each with its config key."""
        return {
            word: _KEYS[need]
            for need, word in _WORDS.items()
            if getattr(needs, need) and not getattr(self, need)
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One method of the registry: its name, where it runs, its summary, source and needs."""

    name: str
    runs_at: Literal["leaver", "server", "everyone"]
    summary: str
    source: str
    needs: Needs = Needs()
    scenarios: tuple[str, ...] | None = None  # the only scenarios that it works in; None: all
    poor_in: tuple[str, ...] = ()  # scenarios in which other methods are better
    erases: bool = True  # False: a baseline or an ablation, not fit for an erasure
    class_name: str = ""  # where it is not the method's name in capitals

    @property
    def class_path(self) -> tuple[str, str]:
        """The module below `secede.unlearning.methods`, and its class."""
        module = self.name.replace("-", "_")
        return module, self.class_name or module.title().replace("_", "")


# In the order in which to try them, where they work: see docs/comparison.md.
METHODS: Mapping[str, Entry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Entry(
                name="second-choice",
                runs_at="leaver",
                summary="distil the others' mean without the labels that are the leaver's own",
                source="ours; descends from FedQUIT",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="virtual-teacher",
                runs_at="leaver",
                summary="distil the model's own outputs with the true class lowered",
                source="Mora et al. 2024, FedQUIT",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="projected-ascent",
                runs_at="leaver",
                summary="ascend the leaver's loss in a ball around the others' mean",
                source="Halimi et al. 2022, Algorithm 1",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="distillation",
                runs_at="server",
                summary="subtract the leaver's updates, then distil the old model at the server",
                source="Wu et al. 2022",
                needs=Needs(history=True, server_data=True, single_updates=True),
                poor_in=("class", "exclusive"),  # the old model teaches these classes again
            ),
            Entry(
                name="federaser",
                class_name="FedEraser",
                runs_at="server",
                summary="replay the recorded rounds without the leaver, with calibrated updates",
                source="Liu et al. 2021, FedEraser",
                needs=Needs(history=True, single_updates=True),
            ),
            Entry(
                name="weight-negation",
                runs_at="server",
                summary="negate the first layer, then post-train",
                source="Khalil et al. 2025, NoT",
            ),
            Entry(
                name="rewind",
                runs_at="server",
                summary="repeat the training from the last model that never saw the leaver: exact",
                source="baseline",
                needs=Needs(history=True, single_updates=True),
            ),
            Entry(
                name="rapid-retrain",
                runs_at="server",
                summary="retrain from scratch with steps scaled by the Fisher information",
                source="Liu et al. 2022, INFOCOM",
            ),
            Entry(
                name="retrain",
                runs_at="server",
                summary="retrain from scratch without the leaver: exact and expensive",
                source="gold standard",
            ),
            Entry(
                name="negated-update",
                runs_at="everyone",
                summary="train one round with the leaver's update negated",
                source="Mora et al. 2025, PUF",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="take-back",
                runs_at="everyone",
                summary="train one round with a long step back along the leaver's update",
                source="ours; descends from PUF",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="orthogonal-descent",
                runs_at="everyone",
                summary="unlearn orthogonally to the others' gradients, then hold post-training",
                source="Pan et al. 2025, FedOSD",
                needs=Needs(leaver_online=True, single_updates=True),
            ),
            Entry(
                name="class-pruning",
                runs_at="everyone",
                summary="zero the channels that discriminate the erased classes",
                source="Wang et al. 2022",
                needs=Needs(leaver_online=True),
                scenarios=("class", "exclusive"),
            ),
            Entry(
                name="gradient-ascent",
                runs_at="leaver",
                summary="ascend the leaver's loss without a ball (ablation of projected-ascent)",
                source="Halimi et al. 2022, section 4.2",
                needs=Needs(leaver_online=True),
                erases=False,  # it destroys the model
            ),
            Entry(
                name="reference",
                runs_at="leaver",
                summary="send the others' mean (ablation of projected-ascent without steps)",
                source="Halimi et al. 2022, w_ref",
                # From w and w_ref the server can compute the leaver's own state.
                needs=Needs(leaver_online=True, single_updates=True),
                erases=False,
            ),
            Entry(
                name="noisy-rewind",
                runs_at="server",
                summary="repeat it from the last model that the leaver hardly moved, with noise",
                source="Fraboni et al. 2024, SIFU",
                needs=Needs(history=True, single_updates=True),
                erases=False,  # its noise follows from a seed, its bound from convexity
            ),
            Entry(
                name="fine-tune",
                runs_at="server",
                summary="post-train the global model without the leaver (forgets little)",
                source="baseline",
                erases=False,
            ),
        )
    }
)


def base_name(name: str) -> str:
    """Return a method's name without its variant: `second-choice` for `second-choice@free`."""
    return name.partition("@")[0]


def check_name(name: str) -> None:
    """Raise unless `name` is a method or looks like a user's own, `package.module:Class`.

    Either may end in `@variant`: the same method with other settings in one run.
    """
    method, mark, variant = name.partition("@")
    if mark and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,31}", variant):
        raise ConfigError(
            f"method {name!r}: expected 1 to 32 of a to z, 0 to 9, '.' and '-' after '@'"
        )
    if method in METHODS or ":" in method:
        return
    raise ConfigError(
        f"unknown method {name!r}; {did_you_mean(method, METHODS)}"
        f"expected one of {', '.join(METHODS)}, or your own as package.module:Class"
    )


def check_possible(
    entry: Entry, situation: Situation, scenario: str, *, comparing: bool = True
) -> None:
    """Raise if the method cannot work here; the error names the methods that can.

    With `comparing` it names baselines and config keys, too.
    """
    if missing := situation.missing(entry.needs):
        problem = f"needs {' and '.join(missing)}, which this federation does not have"
        keys = ", ".join(missing.values())
    elif entry.scenarios is not None and scenario not in entry.scenarios:
        problem = f"works in the scenarios {' and '.join(entry.scenarios)} only, not in {scenario}"
        keys = "scenario.name"
    else:
        return
    possible = [METHODS[name] for name in suitable(METHODS.values(), situation, scenario)]
    possible.sort(key=lambda other: scenario in other.poor_in)
    erasing = [other.name for other in possible if other.erases]
    baselines = [other.name for other in possible if not other.erases]
    ending = ""
    if comparing:  # retraining is always run
        problem += f" ({keys} in a config)"
        erasing.remove("retrain")
        ending = f"; baselines: retrain, which is always run, {', '.join(baselines)}"
    raise ConfigError(
        f"method {entry.name!r} {problem}; methods that work here, best first: "
        f"{', '.join(erasing)}{ending}"
    )


def suitable(entries: Iterable[Entry], situation: Situation, scenario: str) -> tuple[str, ...]:
    """Return the names of the methods that work in this situation and scenario."""
    return tuple(
        entry.name
        for entry in entries
        if not situation.missing(entry.needs)
        and (entry.scenarios is None or scenario in entry.scenarios)
    )


def create(
    name: str, settings: Mapping[str, Any] | None = None, *, search: Path | None = None
) -> tuple[Entry, Method]:
    """Return the method `name` with its settings, and its entry in the registry.

    A class with `unlearn` is a local step and runs at the leaver; one with `start` runs at the
    server. A user's own class may lie in `search`; its attribute `needs` says what it needs.
    """
    from secede.unlearning.method import LocalStepMethod

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


def _type_text(annotation: object) -> str:
    """Return a field's type as it is written in code, also if its module has evaluated it."""
    text = annotation.__name__ if type(annotation) is type else str(annotation)
    text = re.sub(r"\b(?:typing|collections\.abc)\.", "", text)
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)


def _default(field: dataclasses.Field[Any]) -> object:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _find(name: str, search: Path | None) -> tuple[Entry, type]:
    check_name(name)
    method = base_name(name)
    if method in METHODS:
        entry = METHODS[method]
        module, attribute = entry.class_path
        return entry, getattr(import_module(f"secede.unlearning.methods.{module}"), attribute)
    cls = _import_own(method, search)
    return _own_entry(method, cls), cls


def _import_own(name: str, search: Path | None) -> type:
    from secede.unlearning.method import Method

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
