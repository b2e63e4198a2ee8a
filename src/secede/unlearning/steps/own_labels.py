"""Find the labels that are the leaver's own: they fall when its last state is subtracted.

The leaver extrapolates the others' mean away from its own state: w_far = w_ref + k (w_ref - w_i).
Where its pull balances the others', and a round takes them the share c of the way to where they
would be without it, they still have p (1/c - 1) of w_ref - w_i to go, with p the leaver's weight.
The others hold the part 1 - p of the data, and c falls with the steps that they take: so k starts
at a multiple of p / (1 - p), which is fitted. k is raised until a tenth of the labels' probability
has gone, since last updates are short once training has converged.
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
from secede.unlearning.steps.sgd import frozen

FULL_FLOOR_ERROR_RATE = 0.5  # from this error rate on, the floor is the whole rate
MIN_OTHER_SAMPLES = 50  # samples with other labels; missing ones count as right


@torch.no_grad()
def natural_floor(model: nn.Module, samples: Sequence[Batch], classes: int) -> Tensor:
    """Return, for each class, the probability below which its label is not lowered."""
    device = next(model.parameters()).device
    wrong = torch.zeros(classes, dtype=torch.float64, device=device)
    others = torch.zeros_like(wrong)
    for inputs, labels in samples:
        labels = labels.to(device).unsqueeze(1)
        probabilities = model(inputs.to(device)).softmax(dim=1).double()
        other_classes = torch.ones_like(probabilities).scatter(1, labels, 0.0)
        wrong += (probabilities * other_classes).sum(dim=0)
        others += other_classes.sum(dim=0)
    rate = (wrong / others.clamp(min=MIN_OTHER_SAMPLES)).clamp(max=1 / classes)
    errors = rate * (classes - 1)  # if the model erred towards every class as often
    return (rate * (errors / FULL_FLOOR_ERROR_RATE).clamp(max=1)).float()


REACH = 16.0  # times p / (1 - p): near the best value on MNIST, EMNIST and CIFAR-10
MAX_RAISES = 12  # each by a factor of the square root of 2


class Teacher:
    """The target probabilities of the leaver's samples, and which of their labels are its own."""

    def __init__(self, model: nn.Module, begin: State) -> None:
        self._reference = frozen(model, begin)
        self._extrapolated: nn.Module | None = None  # None: all labels are the leaver's own
        self._kept_fraction = 1.0
        self._floor: Tensor | None = None
        self.reach: float | None = None
        self.own_share = 1.0

    def set_floor(self, samples: Sequence[Batch], classes: int) -> None:
        """Lower no label below the rate at which the reference errs towards it."""
        self._floor = natural_floor(self._reference, samples, classes)

    def find_own_labels(
        self,
        own_state: State,
        weight: float | None,
        samples: Sequence[Batch],
        share: float,
        *,
        kept_fraction: float = 1.0,
    ) -> bool:
        """Extrapolate, further each time, until `share` of the labels' probability has gone.

        Return False if less goes at the largest reach: then no label is the leaver's own. If the
        outputs are not finite from some reach on, the largest finite reach counts. Afterwards a
        label's target keeps `kept_fraction` of its extrapolated probability.
        """
        reference = states.live(self._reference)
        own = states.without_aliases(own_state, self._reference)
        states.check_schema(own, reference)
        direction = {
            name: reference[name] - own[name]
            for name, parameter in self._reference.named_parameters()
            if parameter.requires_grad
        }
        if not any(bool(value.any()) for value in direction.values()):
            raise StateError(
                "second-choice cannot tell which labels are the leaver's own: its own state equals "
                "the state that it starts from; give the state it last sent, or labels = 'all'"
            )
        first = REACH * weight / (1 - weight) if weight else 1.0
        for raises in range(MAX_RAISES + 1):
            reach = first * 2 ** (raises / 2)
            if not self._extrapolate(reference, direction, reach, samples):
                self._lower_reach(reference, direction, reach, samples)
                break
            if self.own_share >= share:
                break
        else:
            return False
        self._kept_fraction = kept_fraction  # only now: own labels are found with all of it
        return True

    def _lower_reach(
        self, reference: State, direction: State, reach: float, samples: Sequence[Batch]
    ) -> None:
        """Extrapolate to the largest reach whose outputs are finite."""
        for lowered in range(1, MAX_RAISES + 1):
            if self._extrapolate(reference, direction, reach / 2 ** (lowered / 2), samples):
                return
        raise StateError(
            "second-choice cannot tell which labels are the leaver's own: without its last update "
            "the model's outputs are not finite; give labels = 'all'"
        )

    def _extrapolate(
        self, reference: State, direction: State, reach: float, samples: Sequence[Batch]
    ) -> bool:
        """Extrapolate by `reach` times `direction`; return whether the outputs are finite."""
        extrapolated = {
            name: value + reach * direction[name] if name in direction else value
            for name, value in reference.items()
        }
        self._extrapolated = frozen(self._reference, extrapolated)
        self.reach, self.own_share = reach, self._lost_share(samples)
        return not math.isnan(self.own_share)

    def _lost_share(self, samples: Sequence[Batch]) -> float:
        """Return the share of the labels' probability that the extrapolation takes away."""
        device = next(self._reference.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        for inputs, labels in samples:
            targets = self(inputs.to(device), labels.to(device))
            lost, total = targets.lost_probability(), targets.reference
            sums += torch.stack((lost.double().sum(), total.double().sum()))
        lost_sum, total_sum = sums.tolist()
        return float(lost_sum / total_sum) if total_sum else 0.0

    @torch.no_grad()
    def __call__(self, inputs: Tensor, labels: Tensor) -> LabelTargets:
        """Return the target probabilities of a batch."""
        logits = self._reference(inputs)
        reference = of_label(logits.softmax(dim=1), labels)
        kept = torch.zeros_like(reference)
        if self._extrapolated is not None:
            outputs = self._extrapolated(inputs)
            kept = self._kept_fraction * of_label(outputs.softmax(dim=1), labels)
        floor = torch.zeros_like(reference) if self._floor is None else self._floor[labels]
        return LabelTargets(second_choice(logits, labels), reference, kept, floor)


@dataclass(frozen=True)
class LabelTargets:
    """For each sample of a batch: its second choice, and three probabilities of its label."""

    second_choice: Tensor  # all other classes' probabilities
    reference: Tensor  # at w_ref
    kept: Tensor  # at w_far, times the fraction that is kept
    floor: Tensor

    def distribution(self, labels: Tensor, current: Tensor) -> Tensor:
        """Return the target: each label at the least of its probabilities, not below its floor.

        `current` is the label's probability in the model that is being trained.
        """
        lowest = torch.minimum(self.reference, self._lowest(current))
        return (self.second_choice * (1 - lowest).unsqueeze(1)).scatter(
            1, labels.unsqueeze(1), lowest.unsqueeze(1)
        )

    def lost_probability(self, current: Tensor | None = None) -> Tensor:
        """Return how much probability each label loses: by extrapolation, or by `current` too."""
        lowest = self.kept if current is None else self._lowest(current)
        return (self.reference - lowest).clamp(min=0)

    def _lowest(self, current: Tensor) -> Tensor:
        return torch.maximum(torch.minimum(self.kept, current), self.floor)


def of_label(values: Tensor, labels: Tensor) -> Tensor:
    """Return each row's entry at its label."""
    return values.gather(1, labels.unsqueeze(1)).squeeze(1)


def second_choice(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the softmax of `logits` with each row's own label left out."""
    return logits.scatter(1, labels.unsqueeze(1), -torch.inf).softmax(dim=1)
