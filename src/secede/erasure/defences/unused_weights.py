"""Removal of weights that the retained clients' training does not use: a defence of the server.

A layer's gradient is made of the inputs that it sees, so its updates span the directions in which
the retained clients' samples reach it. The weights W are replaced by those of ridge regression,
W DᵀD (DᵀD + λ)⁻¹ with the updates as rows of D: they answer along these directions as before, and
vanish along those that hardly occur, a small trigger's among them. Nobody's samples are needed,
only what each client sends anyway. Every client's update counts alike, whatever its length, and
without weight decay, which moves unused weights, too. Which weights: `weight_layout.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secede.erasure.defences.weight_layout import EXACT, WeightLayout
from secede.errors import StateError
from secede.state import State

RIDGE_SHARE = 0.1  # of a direction's mean energy; what moves by less, squared, loses half or more
_MAX_SIDE = 4096  # of a layer's inputs or all updates' rows, the fewer: more takes minutes to solve
_MAX_BYTES = 2 << 30  # that one layer may take while it is solved, besides the updates themselves
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
        raise StateError("the retained clients' updates are too far apart in size to be compared")
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
