"""A leaver with classes of its own: nothing is planted, lost or doubled.

The other clients give the leaver their images of the classes and get images of other classes
from it. Each image goes to the client that is furthest below its old size, so that sizes stay
as they were while the leaver has enough to give, and in proportion to that afterwards.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from secede.data import Samples
from secede.errors import ConfigError
from secede.scenarios.scenario import Probe, Scenario

OTHERS = "others_accuracy"  # on test images of all classes but the leaver's


@dataclass(frozen=True, kw_only=True)
class ClassScenario(Scenario):
    """What `Exclusive` and `WholeClass` share."""

    classes: tuple[int, ...]

    def __post_init__(self) -> None:
        check_classes(self.classes)

    def held_out(self, test: Tensor, leaver: Tensor, generator: torch.Generator) -> Tensor | None:
        """Draw test samples with the leaver's mix of classes, so that only membership differs."""
        return draw_like(test, leaver, generator)

    def probe(self, test: Samples) -> Probe:
        """Return the test samples, the leaver's classes and the others counted apart."""
        return probe_classes(test, self.classes, self.main_measure)


@dataclass(frozen=True, kw_only=True)
class Exclusive(ClassScenario):
    """The leaver holds all of `classes` but a share `kept` of what the others had of them.

    What only it could teach is what a model retrained without it does not know. It gives images
    of other classes in exchange: only if it runs out of them is it larger than before.
    """

    name: ClassVar[str] = "exclusive"
    main_measure: ClassVar[str] = "exclusive_accuracy"

    kept: float = 0.0

    def __post_init__(self) -> None:
        check_classes(self.classes)
        if not 0 <= self.kept < 1:
            raise ConfigError(f"scenario.kept is {self.kept}, expected a number from 0 to below 1")

    def deal(
        self, labels: Tensor, parts: Sequence[Tensor], leaver: int, generator: torch.Generator
    ) -> list[Tensor]:
        """Move the classes' images to the leaver and as many others from it."""
        return deal_classes(labels, parts, leaver, generator, classes=self.classes, kept=self.kept)


@dataclass(frozen=True, kw_only=True)
class WholeClass(ClassScenario):
    """The leaver holds `classes`, all of them and only them: to erase it is to erase them."""

    name: ClassVar[str] = "class"
    main_measure: ClassVar[str] = "class_accuracy"

    def deal(
        self, labels: Tensor, parts: Sequence[Tensor], leaver: int, generator: torch.Generator
    ) -> list[Tensor]:
        """Move the classes' images to the leaver and all others from it, by the clients' sizes."""
        return deal_classes(labels, parts, leaver, generator, classes=self.classes, alone=True)


def check_classes(classes: Sequence[int]) -> None:
    """Raise unless `classes` names some classes, each once."""
    if not classes or min(classes) < 0 or len(set(classes)) < len(classes):
        raise ConfigError(
            f"scenario.classes is {list(classes)}, expected one or more class numbers from 0 on, "
            "each once"
        )


def deal_classes(
    labels: Tensor,
    parts: Sequence[Tensor],
    leaver: int,
    generator: torch.Generator,
    *,
    classes: Sequence[int],
    kept: float = 0.0,
    alone: bool = False,
) -> list[Tensor]:
    """Return `parts` with the images of `classes` at the leaver.

    Of each class the others keep a share `kept` of what they had. The leaver gives as many images
    of other classes as it gets, or all that it has: where they are too few, or if it is to hold
    the classes `alone`.
    """
    wanted = torch.tensor(classes)
    taken = _taken(labels, parts, leaver, classes, kept, generator)
    left = [part[~torch.isin(part, taken)] for part in parts]
    is_own = torch.isin(labels[parts[leaver]], wanted)
    own, spare = parts[leaver][is_own], parts[leaver][~is_own]
    spare = spare[torch.randperm(len(spare), generator=generator)]
    given = len(spare) if alone else min(len(spare), len(taken))
    retained = [client for client in range(len(parts)) if client != leaver]
    counts = _counts([len(left[i]) for i in retained], [len(parts[i]) for i in retained], given)
    dealt = list(parts)
    gifts = spare[:given].split(counts)
    for client, gift in zip(retained, gifts, strict=True):
        dealt[client] = torch.cat([left[client], gift])
        _check_some(client, dealt[client], classes)
    dealt[leaver] = torch.cat([own, taken, spare[given:]])
    return dealt


def draw_like(labels: Tensor, like: Tensor, generator: torch.Generator) -> Tensor:
    """Return as many indices into `labels` as possible with the mix of labels of `like`.

    A label that `labels` lacks is left out.
    """
    size = 1 + int(torch.cat([labels, like]).max())
    available = torch.bincount(labels, minlength=size)
    wanted_counts = torch.bincount(like, minlength=size) * (available > 0)
    if not wanted_counts.any():
        return torch.arange(0)
    scale = float((available[wanted_counts > 0] / wanted_counts[wanted_counts > 0]).min())
    shuffled = torch.randperm(len(labels), generator=generator)
    drawn = [
        shuffled[labels[shuffled] == label][: round(scale * int(wanted_counts[label]))]
        for label in wanted_counts.nonzero().flatten().tolist()
    ]
    return torch.cat(drawn).sort().values


def probe_classes(test: Samples, classes: Sequence[int], measure: str) -> Probe:
    """Return the test samples: `measure` counts those of `classes`, another the rest."""
    inside = torch.isin(test.y, torch.tensor(classes, device=test.y.device))
    for mask, which in ((inside, "of these classes"), (~inside, "of any other class")):
        if not mask.any():
            raise ConfigError(
                f"scenario.classes is {list(classes)}, but there is no test image {which}: "
                "choose other classes or raise `limit`"
            )
    return Probe(test, {measure: inside, OTHERS: ~inside})


def _taken(
    labels: Tensor,
    parts: Sequence[Tensor],
    leaver: int,
    classes: Sequence[int],
    kept: float,
    generator: torch.Generator,
) -> Tensor:
    """Return the others' images that the leaver gets, class by class."""
    others = torch.cat([part for client, part in enumerate(parts) if client != leaver])
    taken = []
    for label in classes:
        of_class = others[labels[others] == label]
        staying = round(kept * len(of_class))
        if len(of_class) == staying and not (labels[parts[leaver]] == label).any():
            raise ConfigError(
                f"the leaver would hold no image of class {label}, which scenario.classes names: "
                f"the others have {len(of_class)} of them and keep {staying}"
            )
        drawn = torch.randperm(len(of_class), generator=generator)
        taken.append(of_class[drawn[staying:]])
    return torch.cat(taken)


def _counts(held: Sequence[int], before: Sequence[int], given: int) -> list[int]:
    """Return how many of `given` images each client gets, always the one most below `before`."""
    counts = [0] * len(held)
    queue = [(held[i] / before[i], i) for i in range(len(held))]
    heapq.heapify(queue)
    for _ in range(given):
        _, client = queue[0]
        counts[client] += 1
        filled = (held[client] + counts[client]) / before[client]
        heapq.heapreplace(queue, (filled, client))
    return counts


def _check_some(client: int, part: Tensor, classes: Sequence[int]) -> None:
    if len(part) == 0:
        raise ConfigError(
            f"client {client} had images of the classes {list(classes)} only, and the leaver takes "
            "them all without enough others to give in exchange: name fewer in scenario.classes, "
            "or deal the data more evenly (clients.partition)"
        )
