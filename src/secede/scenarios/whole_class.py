"""Whole classes to be erased: the leaver holds all of their images and nothing else.

So erasing the leaver is erasing the classes, which is what class-wise methods claim to do. All
other images go to the other clients, in proportion to their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from secede.data.samples import Samples
from secede.scenarios import dealing
from secede.scenarios.scenario import Probe, Scenario


@dataclass(frozen=True, kw_only=True)
class WholeClass(Scenario):
    """The leaver holds `classes`, all of them and only them."""

    name: ClassVar[str] = "class"
    main_measure: ClassVar[str] = "class_accuracy"

    classes: tuple[int, ...]

    def __post_init__(self) -> None:
        dealing.check_classes(self.classes)

    def deal(
        self, labels: Tensor, parts: Sequence[Tensor], leaver: int, generator: torch.Generator
    ) -> list[Tensor]:
        """Move the classes' images to the leaver and all others from it."""
        return dealing.deal_classes(
            labels, parts, leaver, generator, classes=self.classes, alone=True
        )

    def transform(self, samples: Samples, generator: torch.Generator) -> Samples:
        """Return the samples unchanged."""
        return samples

    def held_out(self, test: Tensor, leaver: Tensor, generator: torch.Generator) -> Tensor | None:
        """Draw test samples with the leaver's mix of classes, so that only membership differs."""
        return dealing.draw_like(test, leaver, generator)

    def probe(self, test: Samples) -> Probe:
        """Return the test samples, the erased classes and the others counted apart."""
        return dealing.probe_classes(test, self.classes, self.main_measure)
