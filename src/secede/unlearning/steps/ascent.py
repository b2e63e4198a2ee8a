"""Projected gradient ascent on one model: climb the loss, project into a ball, stop at a distance.

Only trainable parameters move. Normalisation layers use the statistics of the start state, so no
statistic of the leaver's data enters the state that it uploads. Steps run in blocks: the host reads
the device once per block, and the ascent ends at the same step as if steps ran one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import StateError
from secede.federation.engine import Batch, Loss
from secede.state import State
from secede.unlearning.steps import leaver_metrics
from secede.unlearning.steps.leaver_metrics import Evaluation


class StepBlock:
    """The buffers of a block of steps, allocated once per ascent."""

    def __init__(
        self, parameters: list[Tensor], momentum: FlatBuffers, move: Callable[[Batch], None]
    ) -> None:
        self._parameters, self._momentum, self._move = parameters, momentum, move
        self._momentum_before = FlatBuffers(parameters)
        self._current, self._proposed, self._difference = (
            FlatBuffers(parameters, wide=True) for _ in range(3)
        )
        self._is_narrow = any(
            p.dtype != view.dtype for p, view in zip(parameters, self._current.views, strict=True)
        )

    def launch(
        self,
        batches: Sequence[Batch],
        *,
        center: FlatBuffers,
        radius: float,
        own: FlatBuffers,
        stop_distance: float,
    ) -> Tensor:
        """Queue one step per batch; return two distances per step, still on the device.

        They are the distance to `center` before the projection and the distance to `own` after it.
        After the first step that ends beyond `stop_distance` from `own`, nothing changes any more.
        """
        device = self._parameters[0].device
        limit = torch.full((), radius, dtype=torch.float64, device=device)
        stopped = torch.zeros((), dtype=torch.bool, device=device)
        distances: list[Tensor] = []
        with torch.no_grad():
            self._current.load(self._parameters)
            for batch in batches:
                self._momentum_before.copy(self._momentum)
                with torch.enable_grad():
                    self._move(batch)
                to_center = self._project(center, limit)
                self._accept_or_undo(stopped)
                self._difference.set_difference(self._current, own)
                to_own = self._difference.squared_norm().sqrt()
                stopped = stopped | (to_own > stop_distance)
                distances += (to_center, to_own)
        return torch.stack(distances).view(-1, 2)

    def _project(self, center: FlatBuffers, radius: Tensor) -> Tensor:
        self._proposed.load(self._parameters)
        self._difference.set_difference(self._proposed, center)
        distance = self._difference.squared_norm().sqrt()
        self._difference.shrink_towards(center, radius / distance)
        self._proposed.copy_where(distance > radius, self._difference)
        return distance

    def _accept_or_undo(self, stopped: Tensor) -> None:
        """Accept the step, or undo it if an earlier step was the last."""
        self._current.copy_where(~stopped, self._proposed)
        self._momentum.copy_where(stopped, self._momentum_before)
        torch._foreach_copy_(self._parameters, self._current.views)
        if self._is_narrow:
            self._current.load(self._parameters)  # distances are those of the rounded values


class FlatBuffers:
    """One tensor per parameter; tensors of one dtype share one flat tensor.

    `parts` are the flat tensors, one per dtype. `views` show the same numbers in the parameters'
    order and shapes. Buffers over the same parameters with the same `wide` have matching parts.
    With `wide`, float16 and bfloat16 are held in float32, the dtype that distances are measured in.
    """

    def __init__(
        self, parameters: Sequence[Tensor], *, wide: bool = False, value: float = 0.0
    ) -> None:
        indices_by_dtype: dict[torch.dtype, list[int]] = {}
        for index, parameter in enumerate(parameters):
            narrow = wide and parameter.dtype != torch.float64
            dtype = torch.float32 if narrow else parameter.dtype
            indices_by_dtype.setdefault(dtype, []).append(index)
        self.parts: list[Tensor] = []
        views: dict[int, Tensor] = {}
        for dtype, indices in indices_by_dtype.items():
            sizes = [parameters[index].numel() for index in indices]
            part = torch.full((sum(sizes),), value, dtype=dtype, device=parameters[0].device)
            self.parts.append(part)
            for index, flat_view in zip(indices, part.split(sizes), strict=True):
                views[index] = flat_view.view(parameters[index].shape)
        self.views = [views[index] for index in range(len(parameters))]

    def load(self, values: list[Tensor]) -> None:
        """Copy `values`, one per parameter."""
        torch._foreach_copy_(self.views, values)

    def copy(self, other: FlatBuffers) -> None:
        """Copy the values of `other`."""
        for part, other_part in zip(self.parts, other.parts, strict=True):
            part.copy_(other_part)

    def copy_where(self, flag: Tensor, other: FlatBuffers) -> None:
        """Copy the values of `other` if the device's `flag` is set; else keep every bit."""
        for part, other_part in zip(self.parts, other.parts, strict=True):
            torch.where(flag, other_part, part, out=part)

    def set_difference(self, minuend: FlatBuffers, subtrahend: FlatBuffers) -> None:
        """Set the values to `minuend` minus `subtrahend`."""
        for part, left, right in zip(self.parts, minuend.parts, subtrahend.parts, strict=True):
            torch.sub(left, right, out=part)

    def shrink_towards(self, center: FlatBuffers, scale: float | Tensor) -> None:
        """Replace a difference d to `center` by the point center + scale * d."""
        for part, center_part in zip(self.parts, center.parts, strict=True):
            part.mul_(scale).add_(center_part)

    def squared_norm(self) -> Tensor:
        """Return the squared L2 norm, in float64 on the device."""
        norms = torch.stack(torch._foreach_norm(self.views))
        return torch.sum(norms.double() ** 2)


_NORM_LAYERS = (nn.modules.batchnorm._NormBase,)
_GPU_BLOCK_SIZE = 8  # one read for eight steps; at most seven steps are computed after a stop


class AnchorState:
    """A state that distances are measured to, over the trainable parameters.

    Frozen parameters are the same everywhere. Statistics of normalisation layers are not weights:
    they alone would exceed any stop distance.
    """

    def __init__(self, ascent: Ascent, state: State) -> None:
        state = states.without_aliases(state, ascent.model)
        states.check_schema(state, ascent.state())
        self.values = FlatBuffers(ascent.parameters, wide=True)
        self.values.load([state[name].to(ascent.device) for name in ascent.trainable_names])


@dataclass(frozen=True, kw_only=True)
class AscentBounds:
    """The ball that the ascent stays in, and the own state that the stop distance counts from."""

    center: AnchorState
    radius: float
    own: AnchorState


@dataclass(frozen=True)
class BlockResult:
    """The steps that one block took, how many were projected, and the distance to `own`."""

    steps: int
    projections: int
    distance: float


class Ascent:
    """Gradient ascent with momentum and clipping from a start state.

    `block_size` is the largest number of steps in a block. The default is one step on the CPU,
    where nothing waits, and several on a GPU.
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
        block_size: int | None = None,
    ) -> None:
        states.check_finite(start, "reference")
        states.load_into(model, start)
        _check_variances(model)
        self.model = model
        parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not parameters:
            raise StateError("every parameter of the model is frozen, so nothing can be unlearned")
        self.trainable_names = list(parameters)
        self.parameters: list[Tensor] = list(parameters.values())
        self.device = self.parameters[0].device
        self._loss, self._clip = loss, clip
        self._learning_rate, self._decay = learning_rate, momentum
        # Adding -0.0 changes no number, so the first velocity is the gradient.
        self._momentum = FlatBuffers(self.parameters, value=-0.0)
        self._difference = FlatBuffers(self.parameters, wide=True)
        default = _GPU_BLOCK_SIZE if self.device.type == "cuda" else 1
        self._max_block_size = default if block_size is None else block_size
        self.block_size = 1  # the first step shows whether larger blocks are safe
        self.steps = 0
        self.gradient_samples = 0

    def run_block(
        self, batches: Sequence[Batch], bounds: AscentBounds, stop_distance: float
    ) -> BlockResult:
        """Take one step per batch until a step ends beyond `stop_distance` from the own state.

        Takes 1 to `block_size` batches. `block_size` grows after the first step, unless that step
        drew random numbers or changed buffers.
        """
        before = _side_effects(self.model, self.device) if self._max_block_size > 1 else None
        if len(batches) == 1 and self.device.type == "cpu":
            result = self._run_single_step(batches[0], bounds)
        else:
            result = self._run_queued_steps(batches, bounds, stop_distance)
        if before is not None and before != _side_effects(self.model, self.device):
            self._max_block_size = 1  # undone steps would leave their side effects behind
        self.block_size = self._max_block_size
        return result

    def ascend(self, batch: Batch) -> None:
        """Take one clipped step up the loss of `batch`."""
        _set_training_mode(self.model)
        self._move(self._on_device(batch))
        self.steps += 1
        self.gradient_samples += len(batch[1])

    def project(self, center: AnchorState, radius: float) -> bool:
        """Project the state into the ball around `center`; return whether it was outside."""
        distance = self.distance(center)
        if distance <= radius:
            return False
        with torch.no_grad():
            self._difference.shrink_towards(center.values, radius / distance)
            torch._foreach_copy_(self.parameters, self._difference.views)
        return True

    def distance(self, anchor: AnchorState) -> float:
        """Return the plain L2 distance to `anchor`, over the trainable parameters."""
        with torch.no_grad():
            for parameter, value, difference in zip(
                self.parameters, anchor.values.views, self._difference.views, strict=True
            ):
                torch.sub(parameter, value, out=difference)
            distance = math.sqrt(self._difference.squared_norm())
        self._check_finite(distance, self.steps)
        return distance

    def evaluate(self, batches: Iterable[Batch], *, labels_fit: bool = False) -> Evaluation:
        """Measure loss and accuracy over `batches`; `labels_fit` skips the check of labels."""
        return leaver_metrics.evaluate(
            self.model, batches, loss=self._loss, device=self.device, labels_fit=labels_fit
        )

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the current state."""
        return states.of(self.model)

    def _run_single_step(self, batch: Batch, bounds: AscentBounds) -> BlockResult:
        self.ascend(batch)
        projected = self.project(bounds.center, bounds.radius)
        return BlockResult(1, int(projected), self.distance(bounds.own))

    def _run_queued_steps(
        self, batches: Sequence[Batch], bounds: AscentBounds, stop_distance: float
    ) -> BlockResult:
        # Moved before the first step: a copy from the host's memory would wait for the device.
        batches = [self._on_device(batch) for batch in batches]
        _set_training_mode(self.model)
        distances = self._step_block.launch(
            batches,
            center=bounds.center.values,
            radius=bounds.radius,
            own=bounds.own.values,
            stop_distance=stop_distance,
        )
        steps, projections, to_own = 0, 0, math.nan
        for to_center, to_own in distances.tolist():  # the block's one read
            steps += 1
            self._check_finite(to_center + to_own, self.steps + steps)
            projections += to_center > bounds.radius
            if to_own > stop_distance:
                break
        self.steps += steps
        self.gradient_samples += sum(len(labels) for _, labels in batches[:steps])
        return BlockResult(steps, projections, to_own)

    @cached_property
    def _step_block(self) -> StepBlock:
        return StepBlock(self.parameters, self._momentum, self._move)

    def _on_device(self, batch: Batch) -> Batch:
        inputs, labels = batch
        return inputs.to(self.device), labels.to(self.device)

    def _move(self, batch: Batch) -> None:
        """Step as clip_grad_norm_ and SGD(maximize=True) do, without a copy of the gradient."""
        inputs, labels = batch
        for parameter in self.parameters:
            parameter.grad = None
        self._loss(self.model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(self.parameters, self._clip)
        updated, gradients, momentum = list[Tensor](), list[Tensor](), list[Tensor]()
        for parameter, velocity in zip(self.parameters, self._momentum.views, strict=True):
            if parameter.grad is not None:  # SGD skips parameters that the loss does not depend on
                updated.append(parameter)
                gradients.append(parameter.grad)
                momentum.append(velocity)
        self._advance(updated, gradients, momentum)

    @torch.no_grad()
    def _advance(
        self, updated: list[Tensor], gradients: list[Tensor], momentum: list[Tensor]
    ) -> None:
        if self.device.type == "cpu":
            # As SGD does there: on bfloat16 the list's product rounds the factor, this does not.
            for parameter, gradient, velocity in zip(updated, gradients, momentum, strict=True):
                velocity.mul_(self._decay).add_(gradient, alpha=-1)
                parameter.add_(velocity, alpha=-self._learning_rate)
            return
        torch._foreach_mul_(momentum, self._decay)
        torch._foreach_add_(momentum, gradients, alpha=-1)
        torch._foreach_add_(updated, momentum, alpha=-self._learning_rate)

    @staticmethod
    def _check_finite(distance: float, step: int) -> None:
        if not math.isfinite(distance):
            raise StateError(
                f"the ascent gave values that are not finite at step {step}: "
                "lower the learning rate or the radius"
            )


def _side_effects(model: nn.Module, device: torch.device) -> tuple[object, ...]:
    """Return what a step may change besides parameters: torch's generators and the buffers."""
    generators = [torch.get_rng_state()]
    if device.type == "cuda":
        generators.append(torch.cuda.get_rng_state(device))
    buffers = [(id(b), None if b.is_inference() else b._version) for b in model.buffers()]
    return (*(bytes(state.numpy()) for state in generators), *buffers)


def _set_training_mode(model: nn.Module) -> None:
    model.train()
    for module in model.modules():
        if isinstance(module, _NORM_LAYERS):
            module.eval()


def _check_variances(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _NORM_LAYERS) and module.running_var is not None:
            if bool((module.running_var < 0).any()):
                raise StateError(
                    f"the reference has negative variances in {name!r}: the own state or its "
                    "weight is not the one in the last aggregate"
                )
            continue
        if isinstance(module, _NORM_LAYERS):
            raise StateError(
                f"layer {name!r} normalises by the statistics of each batch "
                "(track_running_stats=False), so a sample's loss depends on other samples; "
                "expected running statistics"
            )
