"""What the retained clients' training does not use fades: a server's defence in the first round.

A layer's gradient is made of the inputs that it sees, so its updates span the directions in which
the retained clients' samples reach it. The weights W are replaced by those of ridge regression,
W DᵀD (DᵀD + λ)⁻¹ with the updates as rows of D: they answer along these directions as before, and
along those that hardly occur, a trigger's among them, they vanish. Nobody's samples are needed,
only what each sends anyway. Every client's update counts alike, whatever its length.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede.state import State

SHARE = 0.1  # of a direction's mean energy: what moves by less, squared, loses half or more
_LAYERS = (nn.Linear, nn.RNNBase, nn.MultiheadAttention)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, kw_only=True)
class Faded:
    """The state without what nobody uses."""

    state: dict[str, Tensor]
    zeroed: int  # values that nobody moved at all, set to zero
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
            if value.requires_grad and (matrix or kernel):
                found.append(name)
    return frozenset(found[:-1])


def fade(
    state: State,
    start: State,
    updates: Sequence[State],
    *,
    movable: Collection[str],
    weights: Collection[str],
) -> Faded:
    """Return `state` without what the `updates` trained from `start` do not use.

    `movable` are the trainable entries, `weights` those of them that `layers` names.
    """
    found, zeroed, before, after = dict(state), 0, 0.0, 0.0
    for name in sorted(set(movable) & state.keys()):
        value = state[name]
        still = _unmoved(start[name], [update[name] for update in updates]) & (value != 0)
        zeroed += int(still.sum())
        found[name] = torch.where(still, torch.zeros_like(value), value)
        if name in weights:
            changes = [update[name] - start[name] for update in updates]
            found[name] = ridge(found[name], changes)
            before += _squared(value)
            after += _squared(found[name])
    return Faded(state=found, zeroed=zeroed, share=1 - after / before if before else 0.0)


def ridge(weight: Tensor, changes: Sequence[Tensor], share: float = SHARE) -> Tensor:
    """Return the weight that answers as before along what `changes` span, and else is small.

    λ is `share` of the mean over all directions of the energy ΣD², of changes of unit length. It is
    solved in double precision on the CPU, in the smaller of the two dimensions.
    """
    rows = [change.flatten(1).double().cpu() for change in changes]
    rows = [row / row.norm() for row in rows if bool(row.any())]
    if not rows:
        return torch.zeros_like(weight)
    d, w = torch.cat(rows), weight.flatten(1).double().cpu()
    ridge = share * len(rows) / d.shape[1]
    if len(d) < d.shape[1]:
        solved = w @ d.T @ torch.cholesky_solve(d, _factor(d @ d.T, ridge))
    else:
        energy = d.T @ d
        solved = torch.cholesky_solve(energy @ w.T, _factor(energy, ridge)).T
    return solved.view_as(weight).to(weight)


def _factor(energy: Tensor, ridge: float) -> Tensor:
    factor: Tensor = torch.linalg.cholesky(energy + ridge * torch.eye(len(energy)).to(energy))
    return factor


def _unmoved(start: Tensor, updates: Sequence[Tensor]) -> Tensor:
    """Return where all updates are what they started from, to the bit."""
    still = torch.full_like(start, fill_value=True, dtype=torch.bool)
    for update in updates:
        still &= update == start
    return still


def _squared(value: Tensor) -> float:
    return float(value.double().square().sum())
