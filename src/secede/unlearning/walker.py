"""A model that climbs its loss step by step and can be measured and pulled back between steps.

Only trainable parameters move. Normalisation layers run on the reference's statistics, so no
statistic of the leaver's data enters the state that it uploads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import DataError, StateError
from secede.federation.engine import Batch
from secede.federation.training import Loss
from secede.state import State

_STATISTICS = (nn.modules.batchnorm._NormBase,)


@dataclass(frozen=True)
class Evaluation:
    """Mean loss over the given batches, and accuracy where the outputs are class scores."""

    loss: float
    accuracy: float | None
    classes: int | None


class Anchor:
    """A state that distances are measured to, over the parameters that can move.

    Frozen parameters are the same everywhere, and statistics of normalisation layers are not
    weights: counted in, they alone would exceed any stop distance.
    """

    def __init__(self, walker: Walker, state: State) -> None:
        state = states.without_aliases(state, walker.model)
        states.check_schema(state, walker.state())
        self.tensors = [state[name].to(walker.device) for name in walker.movable]


class Walker:
    """Gradient ascent with momentum and clipping from a given start."""

    def __init__(
        self,
        model: nn.Module,
        start: State,
        *,
        loss: Loss,
        learning_rate: float,
        momentum: float,
        clip: float,
    ) -> None:
        states.check_finite(start, "reference")
        states.load_into(model, start)
        _check_variances(model)
        self.model = model
        parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not parameters:
            raise StateError("every parameter is frozen: nothing can be unlearned")
        self.movable = list(parameters)
        self._parameters = list(parameters.values())
        self.device = self._parameters[0].device
        self._loss, self._clip = loss, clip
        self._optimiser = torch.optim.SGD(
            self._parameters, lr=learning_rate, momentum=momentum, maximize=True
        )
        self.steps = 0
        self.gradient_samples = 0

    def ascend(self, batch: Batch) -> None:
        """Take one clipped step up the loss of `batch`."""
        inputs, labels = (part.to(self.device) for part in batch)
        _training_mode(self.model)
        self._optimiser.zero_grad(set_to_none=True)
        self._loss(self.model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._optimiser.step()
        self.steps += 1
        self.gradient_samples += len(labels)

    def project(self, center: Anchor, radius: float) -> bool:
        """Pull the state back into the ball around `center`; say whether it had left."""
        away = self.distance(center)
        if away <= radius:
            return False
        with torch.no_grad():
            difference = _differences(self._parameters, center.tensors)
            torch._foreach_mul_(difference, radius / away)
            for parameter, middle, moved in zip(
                self._parameters, center.tensors, difference, strict=True
            ):
                parameter.copy_(middle.to(moved.dtype) + moved)
        return True

    def distance(self, anchor: Anchor) -> float:
        """Return the plain L2 distance to `anchor`, over what can move."""
        with torch.no_grad():
            difference = _differences(self._parameters, anchor.tensors)
            norms = torch.stack(torch._foreach_norm(difference))
            squared = float(torch.sum(norms.double() ** 2))
        if not math.isfinite(squared):
            raise StateError(
                f"the ascent left the finite numbers at step {self.steps}: "
                "lower the learning rate or the radius"
            )
        return math.sqrt(squared)

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """Measure loss and accuracy over `batches` in evaluation mode."""
        self.model.eval()
        total, right, count, classes = 0.0, 0, 0, None
        with torch.inference_mode():
            for inputs, labels in batches:
                labels = labels.to(self.device)
                outputs = self.model(inputs.to(self.device))
                _check_labels(outputs, labels)
                total += float(self._loss(outputs, labels)) * len(labels)
                count += len(labels)
                if outputs.ndim == 2 and labels.ndim == 1 and not labels.is_floating_point():
                    classes = outputs.shape[1]
                    right += int((outputs.argmax(dim=1) == labels).sum())
        if count == 0:
            raise StateError("the leaver's batches are empty: nothing to unlearn")
        return Evaluation(total / count, right / count if classes else None, classes)

    def state(self) -> dict[str, Tensor]:
        """Return a copy of where it stands."""
        return states.of(self.model)


def _differences(a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Tensor]:
    # float16 and bfloat16 are measured in float32, as everywhere else.
    wide_a = [t if t.dtype == torch.float64 else t.float() for t in a]
    wide_b = [t if t.dtype == torch.float64 else t.float() for t in b]
    return list(torch._foreach_sub(wide_a, wide_b))


def checked(batch: object) -> Batch:
    """Return `batch` if it is a pair of tensors with finite inputs."""
    if not (
        isinstance(batch, (tuple, list))
        and len(batch) == 2
        and all(isinstance(part, Tensor) for part in batch)
    ):
        raise DataError(f"a batch is {type(batch).__name__}, expected a pair (inputs, labels)")
    inputs, labels = batch
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        raise DataError("the leaver's inputs hold values that are not finite")
    return inputs, labels


def _check_labels(outputs: Tensor, labels: Tensor) -> None:
    if outputs.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
        return  # not classes: the loss decides what fits
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= outputs.shape[1]:
        raise DataError(
            f"the leaver's labels run from {low} to {high}, but the model has {outputs.shape[1]} "
            "outputs"
        )


def _training_mode(model: nn.Module) -> None:
    model.train()
    for module in model.modules():
        if isinstance(module, _STATISTICS):
            module.eval()


def _check_variances(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _STATISTICS) and module.running_var is not None:
            if bool((module.running_var < 0).any()):
                raise StateError(
                    f"the reference has negative variances in {name!r}: own state or weight is "
                    "not the one that entered the last aggregate"
                )
            continue
        if isinstance(module, _STATISTICS):
            raise StateError(
                f"{name!r} normalises by the statistics of its own batch "
                "(track_running_stats=False): one sample's loss then depends on others"
            )
