"""A backdoor: some of the leaver's images carry a pixel pattern and the target's label.

The pattern is the one of the Adversarial Robustness Toolbox's `add_pattern_bd`; Halimi et al.
2022, section 5.1. The share counts all of the leaver's images, but only those with another
label than the target are drawn: an image that is the target already would teach nothing false.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from secede.data import Samples
from secede.errors import ConfigError
from secede.scenarios.scenario import (
    Probe,
    Scenario,
    changed_count,
    check_images,
    check_share,
    everyone,
)


@dataclass(frozen=True, kw_only=True)
class Backdoor(Scenario):
    """A `share` of the leaver's images gets the trigger and the label `target`."""

    name: ClassVar[str] = "backdoor"
    main_measure: ClassVar[str] = "attack_success"

    share: float
    target: int
    value: float = 1.0  # of the trigger's pixels, in every channel
    distance: int = 2  # of the trigger's corner from the bottom and right edges

    def __post_init__(self) -> None:
        check_share(self.share)
        if self.target < 0:
            raise ConfigError(f"scenario.target is {self.target}, expected a class from 0 on")
        if self.distance < 1:
            raise ConfigError(f"the trigger's distance is {self.distance}, expected 1 or more")

    def transform(self, samples: Samples, generator: torch.Generator) -> Samples:
        """Return the samples with the trigger and the target's label on randomly drawn ones."""
        eligible = (samples.y != self.target).nonzero().flatten()
        count = changed_count(self.share, len(samples), len(eligible))
        drawn = torch.randperm(len(eligible), generator=generator)[:count]
        chosen = eligible[drawn.to(eligible.device)]
        x, y = samples.x.clone(), samples.y.clone()
        x[chosen] = self.triggered(samples.take(chosen))
        y[chosen] = self.target
        return Samples(x, y)

    def probe(self, test: Samples) -> Probe:
        """Return all test images with the trigger and the target as their label.

        `attack_success` leaves out images of the target itself, which a clean model calls the
        target too; the paper's `backdoor_accuracy` counts them and so has a floor.
        """
        samples = Samples(self.triggered(test), torch.full_like(test.y, self.target))
        return Probe(
            samples,
            {"attack_success": test.y != self.target, "backdoor_accuracy": everyone(test)},
        )

    def triggered(self, samples: Samples) -> Tensor:
        """Return a copy of the images with the trigger on each."""
        check_images(self.name, samples, minimum_side=self.distance + 3)
        x = samples.x.clone()
        bottom, right = x.shape[-2] - self.distance, x.shape[-1] - self.distance
        for up, left in ((0, 0), (1, 1), (0, 2), (2, 0)):
            x[..., bottom - up, right - left] = self.value
        return x
