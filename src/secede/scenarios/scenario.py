"""The contract of a scenario: how the leaver's data differs, and the probe that measures it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from secede.data import Samples
from secede.errors import ConfigError, DataError


@dataclass(frozen=True)
class Probe:
    """Held-out samples made like the leaver's, and which of them each measure counts.

    A measure is the share of its samples whose prediction equals `samples.y`.
    """

    samples: Samples
    measures: Mapping[str, Tensor]  # score name to boolean mask (n,)

    def __post_init__(self) -> None:
        for name, mask in self.measures.items():
            if mask.dtype != torch.bool or mask.shape != self.samples.y.shape:
                raise DataError(
                    f"measure {name!r} has a {mask.dtype} mask of shape {tuple(mask.shape)}, "
                    f"expected a boolean of shape {tuple(self.samples.y.shape)}"
                )


class Scenario(Protocol):
    """How the leaver's data differs from everybody's."""

    @property
    def name(self) -> str:
        """The scenario's name in a config."""

    @property
    def main_measure(self) -> str:
        """The probe's measure that is reported first."""

    def deal(
        self, labels: Tensor, parts: Sequence[Tensor], leaver: int, generator: torch.Generator
    ) -> list[Tensor]:
        """Return the clients' parts (indices into `labels`), dealt anew; unchanged by default."""
        return list(parts)

    def transform(self, samples: Samples, generator: torch.Generator) -> Samples:
        """Return the leaver's samples instead of `samples`; the same by default."""
        return samples

    def held_out(self, test: Tensor, leaver: Tensor, generator: torch.Generator) -> Tensor | None:
        """Return which test samples, by their labels, stand for the leaver's; None: all of them.

        They are the known non-members that membership attacks are judged on.
        """
        return None

    def probe(self, test: Samples) -> Probe:
        """Return the probe, made from the test samples."""
        ...


def everyone(samples: Samples) -> Tensor:
    """Return a mask of all samples."""
    return torch.ones_like(samples.y, dtype=torch.bool)


def check_images(scenario: str, samples: Samples, *, minimum_side: int = 1) -> None:
    """Raise unless samples are images (channels, height, width) of at least `minimum_side`."""
    if len(samples.shape) != 3 or min(samples.shape[1:]) < minimum_side:
        raise ConfigError(
            f"scenario {scenario!r} needs images of shape (channels, height, width) with sides "
            f"of at least {minimum_side} pixels, got inputs of shape {samples.shape}; "
            "'clean' takes any"
        )


def check_share(share: float) -> None:
    """Raise unless `share` is above 0 and at most 1."""
    if not 0 < share <= 1:
        raise ConfigError(f"scenario.share is {share}, expected a number above 0 and at most 1")


def changed_count(share: float, count: int, eligible: int) -> int:
    """Return how many samples to change, `share` of `count`; raise if too few are `eligible`."""
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
