"""A model that climbs its loss, is pulled back into a ball, and stops beyond a threshold.

Only trainable parameters move. Normalisation layers run on the reference's statistics, so no
statistic of the leaver's data enters the state that it uploads. Steps are taken in blocks: the
host reads the device once per block, and the climb ends at the step where single ones would end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import StateError
from secede.federation.engine import Batch
from secede.federation.training import Loss
from secede.state import State
from secede.unlearning.steps import leaver_metrics
from secede.unlearning.steps.flat_buffers import FlatBuffers
from secede.unlearning.steps.leaver_metrics import Evaluation
from secede.unlearning.steps.step_blocks import StepBlock

_STATISTICS = (nn.modules.batchnorm._NormBase,)
_BLOCK_ON_A_GPU = 8  # one read for eight steps, and at most seven computed behind a stop


class Anchor:
    """A state that distances are measured to, over the parameters that can move.

    Frozen parameters are the same everywhere, and statistics of normalisation layers are not
    weights: counted in, they alone would exceed any stop distance.
    """

    def __init__(self, walker: Ascent, state: State) -> None:
        state = states.without_aliases(state, walker.model)
        states.check_schema(state, walker.state())
        self.values = FlatBuffers(walker.parameters, wide=True)
        self.values.take([state[name].to(walker.device) for name in walker.movable])


@dataclass(frozen=True, kw_only=True)
class Course:
    """Where a climb may go: inside the ball around `center`; measured from `own`."""

    center: Anchor
    radius: float
    own: Anchor


@dataclass(frozen=True)
class Stretch:
    """What one block did: steps taken, how many were pulled back, and the distance to `own`."""

    steps: int
    projections: int
    distance: float


class Ascent:
    """Gradient ascent with momentum and clipping from a given start.

    `block` is how many steps a block may hold; by default one on the CPU, which has nothing to
    wait for, and several on a GPU.
    """

    def __init__(
        self,
        model: nn.Module,
        start: State,
        *,
        loss: Loss,
        learning_rate: float,
        momentum: float,
        clip: float,
        block: int | None = None,
    ) -> None:
        states.check_finite(start, "reference")
        states.load_into(model, start)
        _check_variances(model)
        self.model = model
        parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not parameters:
            raise StateError("every parameter is frozen: nothing can be unlearned")
        self.movable = list(parameters)
        self.parameters: list[Tensor] = list(parameters.values())
        self.device = self.parameters[0].device
        self._loss, self._clip = loss, clip
        self._learning_rate, self._decay = learning_rate, momentum
        # -0.0 is the number that changes no other when added: the first velocity is the gradient.
        self._momentum = FlatBuffers(self.parameters, value=-0.0)
        self._apart = FlatBuffers(self.parameters, wide=True)
        default = _BLOCK_ON_A_GPU if self.device.type == "cuda" else 1
        self._largest_block = default if block is None else block
        self.block = 1  # the first step shows whether larger blocks are safe
        self.steps = 0
        self.gradient_samples = 0

    def climb(self, batches: Sequence[Batch], course: Course, threshold: float) -> Stretch:
        """Take a step per batch until one ends further than `threshold` from the own state.

        Expects at least one batch and at most `block` of them; `block` is another after the first
        step, and stays one where a step draws random numbers or changes buffers.
        """
        marks = _marks(self.model, self.device) if self._largest_block > 1 else None
        if len(batches) == 1 and self.device.type == "cpu":
            stretch = self._climb_one(batches[0], course)
        else:
            stretch = self._climb_block(batches, course, threshold)
        if marks is not None and marks != _marks(self.model, self.device):
            self._largest_block = 1  # steps taken in vain would leave their traces
        self.block = self._largest_block
        return stretch

    def ascend(self, batch: Batch) -> None:
        """Take one clipped step up the loss of `batch`."""
        _training_mode(self.model)
        self._move(self._on_device(batch))
        self.steps += 1
        self.gradient_samples += len(batch[1])

    def project(self, center: Anchor, radius: float) -> bool:
        """Pull the state back into the ball around `center`; say whether it had left."""
        away = self.distance(center)
        if away <= radius:
            return False
        with torch.no_grad():
            self._apart.shrink_towards(center.values, radius / away)
            torch._foreach_copy_(self.parameters, self._apart.views)
        return True

    def distance(self, anchor: Anchor) -> float:
        """Return the plain L2 distance to `anchor`, over what can move."""
        with torch.no_grad():
            for parameter, middle, apart in zip(
                self.parameters, anchor.values.views, self._apart.views, strict=True
            ):
                torch.sub(parameter, middle, out=apart)
            found = math.sqrt(self._apart.squared_norm())
        self._check_finite(found, self.steps)
        return found

    def evaluate(self, batches: Iterable[Batch], *, labels_fit: bool = False) -> Evaluation:
        """Measure loss and accuracy over `batches`; `labels_fit`: their labels were checked."""
        return leaver_metrics.evaluate(
            self.model, batches, loss=self._loss, device=self.device, labels_fit=labels_fit
        )

    def state(self) -> dict[str, Tensor]:
        """Return a copy of where it stands."""
        return states.of(self.model)

    def _climb_one(self, batch: Batch, course: Course) -> Stretch:
        self.ascend(batch)
        projected = self.project(course.center, course.radius)
        return Stretch(1, int(projected), self.distance(course.own))

    def _climb_block(self, batches: Sequence[Batch], course: Course, threshold: float) -> Stretch:
        # Moved before the first step: a copy from the host's memory would wait for the device.
        batches = [self._on_device(batch) for batch in batches]
        _training_mode(self.model)
        trail = self._block.launch(
            batches,
            center=course.center.values,
            radius=course.radius,
            own=course.own.values,
            threshold=threshold,
        )
        steps, projections, distance = 0, 0, math.nan
        for away, distance in trail.tolist():  # the block's one read
            steps += 1
            self._check_finite(away + distance, self.steps + steps)
            projections += away > course.radius
            if distance > threshold:
                break
        self.steps += steps
        self.gradient_samples += sum(len(labels) for _, labels in batches[:steps])
        return Stretch(steps, projections, distance)

    @cached_property
    def _block(self) -> StepBlock:
        return StepBlock(self.parameters, self._momentum, self._move)

    def _on_device(self, batch: Batch) -> Batch:
        inputs, labels = batch
        return inputs.to(self.device), labels.to(self.device)

    def _move(self, batch: Batch) -> None:
        """Do what clip_grad_norm_ and SGD(maximize=True) do, without a copy of the gradient."""
        inputs, labels = batch
        for parameter in self.parameters:
            parameter.grad = None
        self._loss(self.model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(self.parameters, self._clip)
        moving, gradients, momentum = list[Tensor](), list[Tensor](), list[Tensor]()
        for parameter, velocity in zip(self.parameters, self._momentum.views, strict=True):
            if parameter.grad is not None:  # SGD leaves alone what the loss does not depend on
                moving.append(parameter)
                gradients.append(parameter.grad)
                momentum.append(velocity)
        self._advance(moving, gradients, momentum)

    @torch.no_grad()
    def _advance(
        self, moving: list[Tensor], gradients: list[Tensor], momentum: list[Tensor]
    ) -> None:
        if self.device.type == "cpu":
            # As SGD does there: on bfloat16 the list's product rounds the factor, this does not.
            for parameter, gradient, velocity in zip(moving, gradients, momentum, strict=True):
                velocity.mul_(self._decay).add_(gradient, alpha=-1)
                parameter.add_(velocity, alpha=-self._learning_rate)
            return
        torch._foreach_mul_(momentum, self._decay)
        torch._foreach_add_(momentum, gradients, alpha=-1)
        torch._foreach_add_(moving, momentum, alpha=-self._learning_rate)

    @staticmethod
    def _check_finite(distance: float, step: int) -> None:
        if not math.isfinite(distance):
            raise StateError(
                f"the ascent left the finite numbers at step {step}: "
                "lower the learning rate or the radius"
            )


def _marks(model: nn.Module, device: torch.device) -> tuple[object, ...]:
    """Return what a step changes besides parameters: torch's generators and the buffers."""
    generators = [torch.get_rng_state()]
    if device.type == "cuda":
        generators.append(torch.cuda.get_rng_state(device))
    buffers = [(id(b), None if b.is_inference() else b._version) for b in model.buffers()]
    return (*(bytes(state.numpy()) for state in generators), *buffers)


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
