"""Flipped images: some of the leaver's are mirrored left to right and keep their label.

Halimi et al. 2022, section 5.2. Of little use where mirrored images are as common as others
(CIFAR-10): there a model that never saw the leaver recognises them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from secede.data import Samples
from secede.scenarios.scenario import (
    Probe,
    Scenario,
    changed_count,
    check_images,
    check_share,
    everyone,
)


@dataclass(frozen=True, kw_only=True)
class Flipped(Scenario):
    """A `share` of the leaver's images is flipped horizontally."""

    name: ClassVar[str] = "flipped"
    main_measure: ClassVar[str] = "flipped_accuracy"

    share: float

    def __post_init__(self) -> None:
        check_share(self.share)

    def transform(self, samples: Samples, generator: torch.Generator) -> Samples:
        """Return the samples with randomly drawn images flipped."""
        check_images(self.name, samples)
        count = changed_count(self.share, len(samples), len(samples))
        chosen = torch.randperm(len(samples), generator=generator)[:count].to(samples.x.device)
        x = samples.x.clone()
        x[chosen] = samples.x[chosen].flip(-1)
        return Samples(x, samples.y)

    def probe(self, test: Samples) -> Probe:
        """Return all test images flipped."""
        check_images(self.name, test)
        return Probe(Samples(test.x.flip(-1), test.y), {"flipped_accuracy": everyone(test)})
