"""Removal of weights that the retained clients' training does not use: a defence of the server.

A layer's gradient is made of the inputs that it sees, so its updates span the directions in which
the retained clients' samples reach it. The weights W are replaced by those of ridge regression,
W DᵀD (DᵀD + λ)⁻¹ with the updates as rows of D: they answer along these directions as before, and
vanish along those that hardly occur, a small trigger's among them. Nobody's samples are needed,
only what each client sends anyway. Every client's update counts alike, whatever its length, and
without weight decay, which moves unused weights, too.

A layer's weight is a matrix whose rows act on the layer's input: a convolution's on patches of it,
group by group. Weights that are no such matrix, or hide it behind a parametrization, cannot be
removed; they are named, so that the receipt can say so.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from secede.errors import StateError
from secede.state import State

RIDGE_SHARE = 0.1  # of a direction's mean energy; what moves by less, squared, loses half or more
_MAX_SIDE = 4096  # of a layer's inputs or all updates' rows, the fewer: more takes minutes to solve
_MAX_BYTES = 2 << 30  # that one layer may take while it is solved, besides the updates themselves
EXACT = (torch.float32, torch.float64)  # in others, training rounds to no movement at all
_LAYERS = (nn.Linear, nn.RNNBase, nn.MultiheadAttention)
_FORWARD = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_TOO_FAR_APART = "the retained clients' updates are too far apart in size to be compared"
_HIDDEN = ("_g", "_v", "_orig")  # what weight_norm, spectral_norm and pruning call its parts


@dataclass(frozen=True)
class WeightLayout:
    """How the values of a weight act on an input: in groups, each of them rows by inputs."""

    groups: int = 1
    transposed: bool = False  # the first axis is the input's

    def blocks(self, weight: Tensor) -> Tensor:
        """Return the weight as groups by rows by inputs."""
        shape = (self.groups, weight.shape[0] // self.groups)
        blocks = weight.reshape(*shape, *weight.shape[1:]).flatten(2)
        return blocks.mT if self.transposed else blocks

    def join(self, blocks: Tensor, template: Tensor) -> Tensor:
        """Return the weight, shaped as `template`, whose `blocks` these are."""
        return (blocks.mT if self.transposed else blocks).reshape(template.shape)


_PLAIN = WeightLayout()


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A state without its unused weights."""

    state: dict[str, Tensor]
    zeroed: int  # values that were set to zero: nobody's training reached their inputs
    share: float  # of the squared length of the layers' weights that was removed
    skipped: tuple[str, ...] = ()  # weights that are too large and stayed as they were


def remove_unused_weights(
    state: State,
    start: State,
    updates: Sequence[State],
    *,
    trainable: Collection[str],
    weights: Mapping[str, WeightLayout],
    single: bool = False,
) -> Removal:
    """Return `state` without the weights that the `updates` trained from `start` do not use.

    `trainable` are the trainable entries, `weights` those of them that `find_layers` names. What
    nobody moves is set to zero: all weights of an input, or `single` values.
    """
    result, zeroed, before, after, skipped = dict(state), 0, 0.0, 0.0, list[str]()
    for name in sorted(set(trainable) & state.keys()):
        value, layout = state[name], weights.get(name, _PLAIN)
        trained = [update[name] for update in updates]
        unused = unmoved(start[name], trained, single=single, layout=layout) & (value != 0)
        zeroed += int(unused.sum())
        result[name] = value.masked_fill(unused, 0)
        if name not in weights:
            continue
        if too_large(value, len(updates), layout):
            skipped.append(name)
            continue
        result[name] = ridge(result[name], start[name], trained, layout)
        before += _squared(value)
        after += _squared(result[name])
    share = 1 - after / before if before else 0.0
    if not math.isfinite(share):
        raise StateError(_TOO_FAR_APART)
    return Removal(state=result, zeroed=zeroed, share=share, skipped=tuple(skipped))


def too_large(weight: Tensor, count: int, layout: WeightLayout = _PLAIN) -> bool:
    """Return whether `ridge` would take too long with `count` updates, or too much memory."""
    _, rows, inputs = _shape(weight, layout)
    fewer = min(count * rows, inputs)
    return fewer > _MAX_SIDE or peak_bytes(weight, count, layout) > _MAX_BYTES


def peak_bytes(weight: Tensor, count: int, layout: WeightLayout = _PLAIN) -> int:
    """Return how much memory `ridge` takes at most besides what it is given.

    That is ten times the layer in doubles, the updates once if they have fewer rows than the layer
    has inputs, and three squares of the fewer.
    """
    groups, rows, inputs = _shape(weight, layout)
    fewer, wide = min(count * rows, inputs), count * rows < inputs
    doubles = 10 * rows * inputs + wide * count * rows * inputs + 3 * fewer**2
    return 8 * groups * doubles


def _shape(weight: Tensor, layout: WeightLayout) -> torch.Size:
    return layout.blocks(torch.empty(weight.shape, device="meta")).shape


def ridge(
    weight: Tensor, start: Tensor, updates: Sequence[Tensor], layout: WeightLayout = _PLAIN
) -> Tensor:
    """Return the weight that answers as before along the updates' changes and is small elsewhere.

    λ is `RIDGE_SHARE` of the mean over all directions of the energy ΣD², of changes of unit length.
    It is solved in double precision on the CPU, one update after the other, in the smaller of the
    two dimensions. What nobody trains, a layer or one of its groups, stays as it is.
    """
    w = layout.blocks(weight.cpu()).double()
    groups, rows, inputs = w.shape
    wide = len(updates) * rows < inputs
    d = w.new_zeros(groups, len(updates) * rows if wide else inputs, inputs)
    count = w.new_zeros(groups, 1, 1)
    for number, update in enumerate(updates):
        change = _of_unit_length(layout.blocks(changed(update.cpu(), start.cpu())))
        count += change.any(dim=2, keepdim=True).any(dim=1, keepdim=True)
        if wide:
            d[:, number * rows : (number + 1) * rows] = change
        else:
            d.baddbmm_(change.mT, change)
    right = d @ w.mT  # solved for below, before the ridge is on the diagonal
    energy = d @ d.mT if wide else d
    energy.diagonal(dim1=1, dim2=2).add_(
        torch.where(count > 0, RIDGE_SHARE * count / inputs, 1)[:, 0]
    )
    solved = torch.cholesky_solve(right, _factor(energy)).mT
    solved = torch.where(count > 0, solved @ d if wide else solved, w)
    return layout.join(solved, weight).to(weight)


def _of_unit_length(blocks: Tensor) -> Tensor:
    """Return each group's change divided by its length, even where that is tiny; zero stays."""
    largest = torch.maximum(blocks.amax((1, 2), keepdim=True), -blocks.amin((1, 2), keepdim=True))
    blocks = blocks / torch.where(largest > 0, largest, 1)
    length = torch.linalg.vector_norm(blocks, dim=(1, 2), keepdim=True)
    return blocks.div_(torch.where(largest > 0, length, 1))


def _factor(energy: Tensor) -> Tensor:
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(energy)
    if bool(failed.any()):
        raise StateError(_TOO_FAR_APART)
    return factor


def changed(update: Tensor, start: Tensor) -> Tensor:
    """Return an update's change in doubles, without weight decay: the same part of every weight.

    The part is the median over the weights that are not small. Samples move weights either way and
    by all sorts of parts; a mean would take some of that for decay.
    """
    change, size = update.to(torch.float64, copy=True).sub_(start), start.abs()
    counts = (size > 0.5 * size.median()) & (size > 0)
    if not bool(counts.any()):
        return change
    part = (change[counts] / start[counts]).median()
    return change.sub_(part * start.double())


def unmoved(
    start: Tensor, updates: Sequence[Tensor], *, single: bool, layout: WeightLayout = _PLAIN
) -> Tensor:
    """Return which values no update moved, to the bit: `single` ones, or those of whole inputs.

    None are in what nobody trains at all, and in numbers shorter than float32.
    """
    still = torch.full_like(start, fill_value=start.dtype in EXACT, dtype=torch.bool)
    for update in updates:
        still &= update == start
    nowhere = torch.zeros_like(still)
    if not single and start.ndim > 1:
        blocks = layout.blocks(still)
        still = layout.join(blocks.all(dim=1, keepdim=True).expand_as(blocks), still)
    elif not single:
        still = nowhere
    return nowhere if bool(still.all()) else still


def _squared(value: Tensor) -> float:
    return float(value.double().square().sum())


@dataclass(frozen=True, kw_only=True)
class ModelLayers:
    """The trainable weights of a model's layers, except the last one's."""

    weights: Mapping[str, WeightLayout]
    left_out: tuple[str, ...]  # of two dimensions or more, in no layer that is recognised
    transposed: frozenset[str]  # of these, those whose first axis is the input's


def find_layers(model: nn.Module, classes: int | None = None) -> ModelLayers:
    """Return the trainable weights whose rows act on a layer's input, except the last layer's.

    A last layer has as many rows as there are `classes`, too few to tell which inputs are in use;
    a trigger is recognised by the layers before it. The groups of a depthwise convolution have too
    few rows as well. Embeddings look inputs up and are left out. Without `classes` the last layer
    is found by the widths of the others.
    """
    final, embedded = last_layer(model, classes), embeddings(model)
    weights, left_out = dict[str, WeightLayout](), list[str]()
    for prefix, module in model.named_modules():
        for name, value in module.named_parameters(prefix, recurse=False):
            if not value.requires_grad or value.ndim < 2 or name in embedded:
                continue
            layout = _layout(module, name.rpartition(".")[2], value)
            if layout is None or (module is final and layout != WeightLayout()):
                left_out.append(name)
            elif module is not final:
                weights[name] = layout
    parts = tuple(
        f"{n}." if n else "" for n, m in model.named_modules() if isinstance(m, _TRANSPOSED)
    )
    transposed = frozenset(name for name in left_out if name.startswith(parts))
    return ModelLayers(weights=weights, left_out=tuple(left_out), transposed=transposed)


def remove_after_round(
    state: State,
    start: State,
    updates: Sequence[State],
    *,
    model: nn.Module,
    trainable: Collection[str],
    classes: int | None,
    is_local: bool,
) -> Removal:
    """Return the mean `state` of a rung's first round without its unused weights.

    After a server-side method (not `is_local`) only what nobody moves goes: such a method has
    broken what it takes apart already. `skipped` names the weights of unknown layers too.
    """
    trained = set(trainable) - embeddings(model)
    if not is_local:
        return remove_unused_weights(
            state, start, updates, trainable=trained, weights={}, single=True
        )
    layers = find_layers(model, classes)
    unknown = sorted(trained & {*layers.left_out})
    trained -= layers.transposed  # an input's values are no column there
    result = remove_unused_weights(state, start, updates, trainable=trained, weights=layers.weights)
    return replace(result, skipped=(*unknown, *result.skipped))


def embeddings(model: nn.Module) -> frozenset[str]:
    """Return the embeddings: a row that is unused in one round may be used in another."""
    return frozenset(
        name
        for prefix, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for name, _ in module.named_parameters(prefix, recurse=False)
    )


def _layout(module: nn.Module, name: str, value: Tensor) -> WeightLayout | None:
    """Return how a module's parameter acts on its input; None if that is unknown."""
    if value.dtype not in EXACT or name.endswith(_HIDDEN):
        return None
    if isinstance(module, _LAYERS):
        return WeightLayout() if value.ndim == 2 else None
    if isinstance(module, (*_FORWARD, *_TRANSPOSED)):
        if module.groups > 1 and module.groups == module.in_channels:
            return None
        return WeightLayout(module.groups, isinstance(module, _TRANSPOSED))
    return None


def last_layer(model: nn.Module, classes: int | None = None) -> nn.Module | None:
    """Return the last layer of the computation, as far as it can be found without a sample.

    It has an output for each class, and no other layer of its kind takes so many inputs; of several
    it is the one registered last. Where there is none, or `classes` is unknown, it is the linear
    layer whose outputs no other one takes; else the last linear one, or the last of all.
    """
    layers = [m for m in model.modules() if isinstance(m, (*_LAYERS, *_FORWARD, *_TRANSPOSED))]
    fitting = [layer for layer in layers if classes is not None and _width(layer, "out") == classes]
    final = [layer for layer in layers if not any(_takes(other, layer) for other in layers)]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for candidates in (_both(fitting, final), fitting, _both(linear, final), linear, layers):
        if candidates:
            return candidates[-1]
    return None


def _both(layers: Sequence[nn.Module], others: Sequence[nn.Module]) -> list[nn.Module]:
    return [layer for layer in layers if layer in others]


def _takes(other: nn.Module, layer: nn.Module) -> bool:
    """Return whether `other` may take the outputs of `layer`: it is of its kind, and as wide."""
    akin = other is not layer and isinstance(other, nn.Linear) == isinstance(layer, nn.Linear)
    width = _width(layer, "out")
    return akin and width is not None and width == _width(other, "in")


def _width(module: nn.Module, side: str) -> int | None:
    """Return a layer's inputs or outputs; None where it does not say."""
    width = getattr(module, f"{side}_features", None) or getattr(module, f"{side}_channels", None)
    return int(width) if isinstance(width, int) else None
