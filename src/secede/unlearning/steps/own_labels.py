"""Which labels are the leaver's own: those that fall when its last state is taken back.

w_far = w_ref + k (w_ref - w_i). Where the leaver's pull balances the others', and a round takes
them the share c of the way to where they would be without it, they still have p (1/c - 1) of w_ref
- w_i to go, with p the leaver's weight. The others have the part 1 - p of the data, and c is the
smaller the fewer steps they take: so k starts at a multiple of p / (1 - p), which is fitted. It is
raised until a tenth of the labels' probability has gone, since last steps are short once training
has converged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import StateError
from secede.federation.engine import Batch
from secede.state import State
from secede.unlearning.local_step import LocalTask
from secede.unlearning.steps.error_floor import natural_floor
from secede.unlearning.steps.sgd import frozen

REACH = 16.0  # times p / (1 - p): near where MNIST, EMNIST and CIFAR-10 had it
RAISES = 12  # by half an octave each, at most


class Teacher:
    """What the leaver's samples should be answered, and which of their labels are its own."""

    def __init__(self, model: nn.Module, begin: State) -> None:
        self._near = frozen(model, begin)
        self._far: nn.Module | None = None  # None: all labels are its own
        self._keep = 1.0
        self._floor: Tensor | None = None
        self.reach: float | None = None
        self.own_share = 1.0

    def lower_no_further(self, samples: Sequence[Batch], classes: int) -> None:
        """Lower no label below what it has by nature (`floor.py`)."""
        self._floor = natural_floor(self._near, samples, classes)

    def look_beyond(
        self, task: LocalTask, samples: Sequence[Batch], share: float, *, keep: float = 1.0
    ) -> bool:
        """Take the own state back, further each time, until `share` of the labels has gone.

        Of what a label has there it keeps the part `keep` then. False if too little went within
        reason: then nothing is its own. Where the network's numbers end before, what was lost up
        to there must do.
        """
        near = states.live(self._near)
        own = states.without_aliases(task.own_state, self._near)
        states.check_schema(own, near)
        away = {n: near[n] - own[n] for n, p in self._near.named_parameters() if p.requires_grad}
        if not any(bool(value.any()) for value in away.values()):
            raise StateError(
                "second-choice: the leaver's own state is the one it starts from, so it cannot "
                "tell which labels are its own: give the state it last sent, or labels = 'all'"
            )
        weight = task.own_weight
        first = REACH * weight / (1 - weight) if weight else 1.0
        for raised in range(RAISES + 1):
            reach = first * 2 ** (raised / 2)
            if not self._look(near, away, reach, samples):
                self._look_nearer(near, away, reach, samples)
                break
            if self.own_share >= share:
                break
        else:
            return False
        self._keep = keep  # what is its own was told by what labels have there, all of it
        return True

    def _look_nearer(
        self, near: State, away: State, reach: float, samples: Sequence[Batch]
    ) -> None:
        """Look from as far away as there are numbers: that is all that can be told."""
        for lowered in range(1, RAISES + 1):
            if self._look(near, away, reach / 2 ** (lowered / 2), samples):
                return
        raise StateError(
            "second-choice: taken back, the network gives no finite numbers, so the leaver cannot "
            "tell which labels are its own: take labels = 'all'"
        )

    def _look(self, near: State, away: State, reach: float, samples: Sequence[Batch]) -> bool:
        """Look from so far away; False if the network's numbers end before."""
        beyond = {n: v + reach * away[n] if n in away else v for n, v in near.items()}
        self._far = frozen(self._near, beyond)
        self.reach, self.own_share = reach, self._share(samples)
        return not math.isnan(self.own_share)

    def _share(self, samples: Sequence[Batch]) -> float:
        device = next(self._near.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        for inputs, labels in samples:
            lesson = self(inputs.to(device), labels.to(device))
            sums += torch.stack((lesson.lost().double().sum(), lesson.known.double().sum()))
        lost, known = sums.tolist()
        return float(lost / known) if known else 0.0

    @torch.no_grad()
    def __call__(self, inputs: Tensor, labels: Tensor) -> Lesson:
        """Return the lesson for a batch."""
        near = self._near(inputs)
        known = of_label(near.softmax(dim=1), labels)
        kept = torch.zeros_like(known)
        if self._far is not None:
            kept = self._keep * of_label(self._far(inputs).softmax(dim=1), labels)
        floor = torch.zeros_like(known) if self._floor is None else self._floor[labels]
        return Lesson(second_choice(near, labels), known, kept, floor)


@dataclass(frozen=True)
class Lesson:
    """For a batch: second choices; the labels' probabilities at w_ref, beyond it, and at least."""

    second: Tensor
    known: Tensor
    kept: Tensor
    floor: Tensor

    def target(self, labels: Tensor, now: Tensor) -> Tensor:
        """Lower each label to the least it has anywhere, `now` included, not below its floor."""
        least = torch.minimum(self.known, self._least(now))
        return (self.second * (1 - least).unsqueeze(1)).scatter(
            1, labels.unsqueeze(1), least.unsqueeze(1)
        )

    def lost(self, now: Tensor | None = None) -> Tensor:
        """Return how much probability each label loses on the way, or has lost by `now`."""
        least = self.kept if now is None else self._least(now)
        return (self.known - least).clamp(min=0)

    def _least(self, now: Tensor) -> Tensor:
        return torch.maximum(torch.minimum(self.kept, now), self.floor)


def of_label(values: Tensor, labels: Tensor) -> Tensor:
    """Return each row's entry at its label."""
    return values.gather(1, labels.unsqueeze(1)).squeeze(1)


def second_choice(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the softmax of `logits` with each row's own label left out."""
    return logits.scatter(1, labels.unsqueeze(1), -torch.inf).softmax(dim=1)
