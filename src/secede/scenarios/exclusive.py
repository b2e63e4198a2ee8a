"""Exclusive classes: the leaver alone holds some classes, or nearly all of their images.

A natural leaver: nothing is planted, and what only it could teach is what a model retrained
without it does not know. The leaver gives images of other classes in exchange for what it gets,
so all sizes stay as dealt unless it runs out of them; then it is the larger one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.scenarios import dealing
from secede.scenarios.scenario import Probe, Scenario


@dataclass(frozen=True, kw_only=True)
class Exclusive(Scenario):
    """The leaver holds all of `classes` but a share `kept` of what the others had of them."""

    name: ClassVar[str] = "exclusive"
    main_measure: ClassVar[str] = "exclusive_accuracy"

    classes: tuple[int, ...]
    kept: float = 0.0

    def __post_init__(self) -> None:
        dealing.check_classes(self.classes)
        if not 0 <= self.kept < 1:
            raise ConfigError(f"scenario.kept is {self.kept}, expected a number from 0 to below 1")

    def deal(
        self, labels: Tensor, parts: Sequence[Tensor], leaver: int, generator: torch.Generator
    ) -> list[Tensor]:
        """Move the classes' images to the leaver and as many others from it."""
        return dealing.deal_classes(
            labels, parts, leaver, generator, classes=self.classes, kept=self.kept
        )

    def transform(self, samples: Samples, generator: torch.Generator) -> Samples:
        """Return the samples unchanged."""
        return samples

    def held_out(self, test: Tensor, leaver: Tensor, generator: torch.Generator) -> Tensor | None:
        """Draw test samples with the leaver's mix of classes, so that only membership differs."""
        return dealing.draw_like(test, leaver, generator)

    def probe(self, test: Samples) -> Probe:
        """Return the test samples, the leaver's classes and the others counted apart."""
        return dealing.probe_classes(test, self.classes, self.main_measure)
