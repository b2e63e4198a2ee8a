"""What the leaver's data is like, and the held-out probe that shows whether it was forgotten.

This module never imports torch itself, so that names can be listed without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from secede.errors import ConfigError, did_you_mean
from secede.scenarios.share import default_share

if TYPE_CHECKING:
    from secede.scenarios.scenario import Scenario

__all__ = ["SCENARIOS", "Entry", "check_name", "create", "default_share"]


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
            description="a benign leaver: its data is like everybody's",
            measures=("holdout_accuracy",),
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


def create(
    name: str, *, classes: int, share: float | None = None, target: int | None = None
) -> Scenario:
    """Return a scenario for data of `classes` classes; a backdoor aims at the last by default.

    `default_share` gives the paper's share; a scenario that takes none refuses to be given one.
    """
    check_name(name)
    for key, value in (("share", share), ("target", target)):
        if value is not None and key not in SCENARIOS[name].settings:
            raise ConfigError(f"scenario.{key} is {value}, but {name!r} takes none: leave it out")
    if name == "clean":
        from secede.scenarios.clean import Clean

        return Clean()
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
