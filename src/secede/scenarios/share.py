"""Which share of the leaver's samples a scenario changes."""

from __future__ import annotations

import math

from secede.errors import ConfigError


def default_share(clients: int) -> float:
    """Return the paper's share: 66 % with fewer than 10 clients (its N=5), else 80 % (its N=10)."""
    return 0.66 if clients < 10 else 0.80


def check_share(share: float) -> None:
    """Raise unless `share` is above 0 and at most 1."""
    if not 0 < share <= 1:
        raise ConfigError(f"scenario.share is {share}, expected a number above 0 and at most 1")


def changed_count(share: float, count: int, eligible: int) -> int:
    """Return how many of `count` samples `share` means, all to be found among the `eligible`."""
    changed = round(share * count)
    if changed < 1:
        raise ConfigError(
            f"scenario.share is {share}, which is none of {count} samples: "
            "raise it or give the leaver more"
        )
    if changed > eligible:
        raise ConfigError(
            f"scenario.share is {share}, which is {changed} of {count} samples, but only "
            f"{eligible} can be changed (the target's own never are): "
            f"use {math.floor(100 * eligible / count) / 100} or less"
        )
    return changed
