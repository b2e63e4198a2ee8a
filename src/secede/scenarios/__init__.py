"""Scenarios by name: how the leaver's data differs, and which scores measure that.

This module imports torch in `create` only, so that names can be listed without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from secede.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from secede.scenarios.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One scenario as the command line lists it."""

    description: str
    measures: tuple[str, ...]  # the probe's scores, the main one first
    settings: tuple[str, ...] = ()  # the keys below `scenario` that it takes


SCENARIOS: Mapping[str, Entry] = MappingProxyType(
    {
        "backdoor": Entry(
            description="a share of the leaver's images carries a trigger and a false label",
            measures=("attack_success", "backdoor_accuracy"),
            settings=("share", "target"),
        ),
        "flipped": Entry(
            description="a share of the leaver's images is flipped left to right",
            measures=("flipped_accuracy",),
            settings=("share",),
        ),
        "clean": Entry(
            description="a benign leaver: its data is like the other clients'",
            measures=("holdout_accuracy",),
        ),
        "exclusive": Entry(
            description="the leaver alone holds some classes, or nearly all of their images",
            measures=("exclusive_accuracy", "others_accuracy"),
            settings=("classes", "kept"),
        ),
        "class": Entry(
            description="the leaver holds some classes and nothing else; erasing it erases them",
            measures=("class_accuracy", "others_accuracy"),
            settings=("classes",),
        ),
    }
)


def check_name(name: str) -> None:
    """Raise unless `name` is a scenario."""
    if name in SCENARIOS:
        return
    raise ConfigError(
        f"scenario.name: unknown name {name!r}; {did_you_mean(name, SCENARIOS)}"
        f"expected one of {', '.join(SCENARIOS)}"
    )


def check_settings(name: str, given: Mapping[str, object]) -> None:
    """Raise if a setting is given (not None) that the scenario does not take."""
    check_name(name)
    for key, value in given.items():
        if value is not None and key not in SCENARIOS[name].settings:
            raise ConfigError(f"scenario.{key} is {value}, but {name!r} takes none: leave it out")


def default_share(clients: int) -> float:
    """Return the paper's share: 66 % with fewer than 10 clients (its N=5), else 80 % (its N=10)."""
    return 0.66 if clients < 10 else 0.80


def create(
    name: str,
    *,
    classes: int,
    share: float | None = None,
    target: int | None = None,
    chosen: Sequence[int] | None = None,
    kept: float | None = None,
) -> Scenario:
    """Return a scenario for data of `classes` classes; a backdoor's default target is the last.

    `default_share` gives the paper's share; raises if the scenario does not take a setting.
    `chosen` is the config's `scenario.classes`, by default the last fifth of them.
    """
    check_settings(name, {"share": share, "target": target, "classes": chosen, "kept": kept})
    if name == "clean":
        from secede.scenarios.clean import Clean

        return Clean()
    if name == "exclusive":
        from secede.scenarios.classes import Exclusive

        return Exclusive(classes=_classes(chosen, classes), kept=kept or 0.0)
    if name == "class":
        from secede.scenarios.classes import WholeClass

        return WholeClass(classes=_classes(chosen, classes))
    if share is None:
        raise ConfigError(
            f"scenario.share is missing: {name!r} needs one above 0 and at most 1 "
            f"(the paper's: {default_share(5)} with 5 clients, {default_share(10)} with 10)"
        )
    if name == "flipped":
        from secede.scenarios.flipped import Flipped

        return Flipped(share=share)
    from secede.scenarios.backdoor import Backdoor

    return Backdoor(share=share, target=_target(target, classes))


def _target(target: int | None, classes: int) -> int:
    if target is None:
        return classes - 1
    if not 0 <= target < classes:
        raise ConfigError(f"scenario.target is {target}, expected a class from 0 to {classes - 1}")
    return target


def _classes(chosen: Sequence[int] | None, classes: int) -> tuple[int, ...]:
    if chosen is None:
        return tuple(range(classes - max(1, classes // 5), classes))
    if any(not 0 <= label < classes for label in chosen) or len(set(chosen)) == classes:
        raise ConfigError(
            f"scenario.classes is {list(chosen)}, expected classes from 0 to {classes - 1}, "
            "and not all of them: the other clients need some"
        )
    return tuple(chosen)
