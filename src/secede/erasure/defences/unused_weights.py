"""What the retained clients' training does not use fades: a server's defence in the first round.

A layer's gradient is made of the inputs that it sees, so its updates span the directions in which
the retained clients' samples reach it. The weights W are replaced by those of ridge regression,
W DᵀD (DᵀD + λ)⁻¹ with the updates as rows of D: they answer along these directions as before, and
along those that hardly occur, a small trigger's among them, they vanish. Nobody's samples are
needed, only what each sends anyway. Every client's update counts alike, whatever its length, and
without weight decay, which moves what nobody uses, too. Which weights: `layers.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secede.erasure.defences.weight_layout import EXACT, WeightLayout
from secede.errors import StateError
from secede.state import State

SHARE = 0.1  # of a direction's mean energy: what moves by less, squared, loses half or more
_LARGEST = 4096  # of a layer's inputs or all updates' rows, the fewer: more takes minutes to solve
_BYTES = 2 << 30  # that one layer may take while it is solved, besides the updates themselves
_PLAIN = WeightLayout()


@dataclass(frozen=True, kw_only=True)
class Faded:
    """The state without what nobody uses."""

    state: dict[str, Tensor]
    zeroed: int  # values of inputs that nobody's training reached, set to zero
    share: float  # of the squared length of the layers' weights that is gone
    skipped: tuple[str, ...] = ()  # weights that are too large, and stayed as they were


def fade(
    state: State,
    start: State,
    updates: Sequence[State],
    *,
    movable: Collection[str],
    weights: Mapping[str, WeightLayout],
    single: bool = False,
) -> Faded:
    """Return `state` without what the `updates` trained from `start` do not use.

    `movable` are the trainable entries, `weights` those of them that `layers` names. What nobody
    moves is set to zero: all weights of an input, or `single` values.
    """
    found, zeroed, before, after, skipped = dict(state), 0, 0.0, 0.0, list[str]()
    for name in sorted(set(movable) & state.keys()):
        value, form = state[name], weights.get(name, _PLAIN)
        moved = [update[name] for update in updates]
        still = unmoved(start[name], moved, single=single, form=form)
        still = still & (value != 0)
        zeroed += int(still.sum())
        found[name] = value.masked_fill(still, 0)
        if name not in weights:
            continue
        if too_large(value, len(updates), form):
            skipped.append(name)
            continue
        found[name] = ridge(found[name], start[name], moved, form)
        before += _squared(value)
        after += _squared(found[name])
    share = 1 - after / before if before else 0.0
    return Faded(state=found, zeroed=zeroed, share=share, skipped=tuple(skipped))


def too_large(weight: Tensor, count: int, form: WeightLayout = _PLAIN) -> bool:
    """Return whether `ridge` would take too long with `count` updates, or too much memory."""
    _, rows, inputs = _shape(weight, form)
    fewer = min(count * rows, inputs)
    return fewer > _LARGEST or peak_bytes(weight, count, form) > _BYTES


def peak_bytes(weight: Tensor, count: int, form: WeightLayout = _PLAIN) -> int:
    """Return how much memory `ridge` takes at most besides what it is given.

    That is ten times the layer in doubles, the updates once if they have fewer rows than the layer
    has inputs, and three squares of the fewer.
    """
    groups, rows, inputs = _shape(weight, form)
    fewer, wide = min(count * rows, inputs), count * rows < inputs
    doubles = 10 * rows * inputs + wide * count * rows * inputs + 3 * fewer**2
    return 8 * groups * doubles


def _shape(weight: Tensor, form: WeightLayout) -> torch.Size:
    return form.blocks(torch.empty(weight.shape, device="meta")).shape


def ridge(
    weight: Tensor, start: Tensor, updates: Sequence[Tensor], form: WeightLayout = _PLAIN
) -> Tensor:
    """Return the weight that answers as before along what updates change, and else is small.

    λ is `SHARE` of the mean over all directions of the energy ΣD², of changes of unit length. It is
    solved in double precision on the CPU, one update after the other, in the smaller of the two
    dimensions. What nobody trains, a layer or one of its groups, stays as it is.
    """
    w = form.blocks(weight.cpu()).double()
    groups, rows, inputs = w.shape
    wide = len(updates) * rows < inputs
    d = w.new_zeros(groups, len(updates) * rows if wide else inputs, inputs)
    count = w.new_zeros(groups, 1, 1)
    for number, update in enumerate(updates):
        change = _of_unit_length(form.blocks(changed(update.cpu(), start.cpu())))
        count += change.any(dim=2, keepdim=True).any(dim=1, keepdim=True)
        if wide:
            d[:, number * rows : (number + 1) * rows] = change
        else:
            d.baddbmm_(change.mT, change)
    known = d @ w.mT  # solved for below, before the ridge is on the diagonal
    energy = d @ d.mT if wide else d
    energy.diagonal(dim1=1, dim2=2).add_(torch.where(count > 0, SHARE * count / inputs, 1)[:, 0])
    solved = torch.cholesky_solve(known, _factor(energy)).mT
    solved = torch.where(count > 0, solved @ d if wide else solved, w)
    return form.whole(solved, weight).to(weight)


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

    The part is the median over the weights that are not small. What samples move, they move either
    way, and by all sorts of parts; a mean would take some of that for decay.
    """
    change, size = update.to(torch.float64, copy=True).sub_(start), start.abs()
    counts = (size > 0.5 * size.median()) & (size > 0)
    if not bool(counts.any()):
        return change
    part = (change[counts] / start[counts]).median()
    return change.sub_(part * start.double())


def unmoved(
    start: Tensor, updates: Sequence[Tensor], *, single: bool, form: WeightLayout = _PLAIN
) -> Tensor:
    """Return which values no update moved, to the bit: `single` ones, or those of whole inputs.

    Nowhere in what nobody trains at all, and in short numbers.
    """
    still = torch.full_like(start, fill_value=start.dtype in EXACT, dtype=torch.bool)
    for update in updates:
        still &= update == start
    nowhere = torch.zeros_like(still)
    if not single and start.ndim > 1:
        blocks = form.blocks(still)
        still = form.whole(blocks.all(dim=1, keepdim=True).expand_as(blocks), still)
    elif not single:
        still = nowhere
    return nowhere if bool(still.all()) else still


def _squared(value: Tensor) -> float:
    return float(value.double().square().sum())
