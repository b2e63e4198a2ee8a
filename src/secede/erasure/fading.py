"""What the retained clients' training does not use fades: a server's defence in the first round.

A layer's gradient is made of the inputs that it sees, so its updates span the directions in which
the retained clients' samples reach it. The weights W are replaced by those of ridge regression,
W DᵀD (DᵀD + λ)⁻¹ with the updates as rows of D: they answer along these directions as before, and
along those that hardly occur, a small trigger's among them, they vanish. Nobody's samples are
needed, only what each sends anyway. Every client's update counts alike, whatever its length, and
without weight decay, which moves what nobody uses, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede.errors import StateError
from secede.state import State

SHARE = 0.1  # of a direction's mean energy: what moves by less, squared, loses half or more
_LARGEST = 4096  # of a layer's inputs or all updates' rows, the fewer: more takes minutes to solve
_EXACT = (torch.float32, torch.float64)  # in others, training rounds to no movement at all
_LAYERS = (nn.Linear, nn.RNNBase, nn.MultiheadAttention)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, kw_only=True)
class Faded:
    """The state without what nobody uses."""

    state: dict[str, Tensor]
    zeroed: int  # values of inputs that nobody's training reached, set to zero
    share: float  # of the squared length of the layers' weights that is gone


def layers(model: nn.Module) -> frozenset[str]:
    """Return the trainable weights whose rows act on a layer's input, but for the last layer's.

    A last layer has as many rows as there are classes, too few to tell what its inputs are; what
    it can tell a trigger by are the layers before it. Embeddings look inputs up and are left out.
    """
    found = list[str]()
    for prefix, module in model.named_modules():
        for name, value in module.named_parameters(prefix, recurse=False):
            matrix = isinstance(module, _LAYERS) and value.ndim == 2
            kernel = isinstance(module, _CONVOLUTIONS) and value.ndim > 2
            if value.requires_grad and value.dtype in _EXACT and (matrix or kernel):
                found.append(name)
    return frozenset(found[:-1])


def lookups(model: nn.Module) -> frozenset[str]:
    """Return the embeddings: a row that nobody needed in one round is not one that nobody needs."""
    return frozenset(
        name
        for prefix, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for name, _ in module.named_parameters(prefix, recurse=False)
    )


def fade(
    state: State,
    start: State,
    updates: Sequence[State],
    *,
    movable: Collection[str],
    weights: Collection[str],
    single: bool = False,
) -> Faded:
    """Return `state` without what the `updates` trained from `start` do not use.

    `movable` are the trainable entries, `weights` those of them that `layers` names. What nobody
    moves is set to zero: all weights of an input, or `single` values.
    """
    found, zeroed, before, after = dict(state), 0, 0.0, 0.0
    for name in sorted(set(movable) & state.keys()):
        value = state[name]
        still = unmoved(start[name], [update[name] for update in updates], single=single)
        still &= value != 0
        zeroed += int(still.sum())
        found[name] = torch.where(still, torch.zeros_like(value), value)
        if name in weights:
            changes = [
                without_decay(update[name].double() - start[name].double(), start[name])
                for update in updates
            ]
            found[name] = ridge(found[name], changes)
            before += _squared(value)
            after += _squared(found[name])
    return Faded(state=found, zeroed=zeroed, share=1 - after / before if before else 0.0)


def ridge(weight: Tensor, changes: Sequence[Tensor], share: float = SHARE) -> Tensor:
    """Return the weight that answers as before along what `changes` span, and else is small.

    λ is `share` of the mean over all directions of the energy ΣD², of changes of unit length. It is
    solved in double precision on the CPU, in the smaller of the two dimensions. A layer that nobody
    trains, or that is too large, stays as it is.
    """
    rows = [change.flatten(1).double().cpu() for change in changes]
    rows = [row / row.abs().max() for row in rows if bool(row.any())]
    rows = [row / row.norm() for row in rows]
    if not rows or min(sum(map(len, rows)), rows[0].shape[1]) > _LARGEST:
        return weight
    d, w = torch.cat(rows), weight.flatten(1).double().cpu()
    ridge = share * len(rows) / d.shape[1]
    if len(d) < d.shape[1]:
        solved = w @ d.T @ torch.cholesky_solve(d, _factor(d @ d.T, ridge))
    else:
        energy = d.T @ d
        solved = torch.cholesky_solve(energy @ w.T, _factor(energy, ridge)).T
    return solved.view_as(weight).to(weight)


def _factor(energy: Tensor, ridge: float) -> Tensor:
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(energy + ridge * torch.eye(len(energy)).to(energy))
    if bool(failed):
        raise StateError("the retained clients' updates are too far apart in size to be compared")
    return factor


def without_decay(change: Tensor, weight: Tensor) -> Tensor:
    """Return a change without what is the same part of every weight, as weight decay takes it.

    The part is the median over the weights that are not small. What samples move, they move either
    way, and by all sorts of parts; a mean would take some of that for decay.
    """
    size = weight.double().abs()
    counts = (size > 0.5 * size.median()) & (size > 0)
    if not bool(counts.any()):
        return change
    part = (change[counts] / weight.double()[counts]).median()
    return change - part * weight.double()


def unmoved(start: Tensor, updates: Sequence[Tensor], *, single: bool) -> Tensor:
    """Return which values no update moved, to the bit: `single` ones, or those of whole inputs.

    Nowhere in what nobody trains at all, and in short numbers.
    """
    still = torch.full_like(start, fill_value=start.dtype in _EXACT, dtype=torch.bool)
    for update in updates:
        still &= update == start
    nowhere = torch.zeros_like(still)
    if not single:
        still = nowhere | still.all(dim=0) if start.ndim > 1 else nowhere
    return nowhere if bool(still.all()) else still


def _squared(value: Tensor) -> float:
    return float(value.double().square().sum())
