"""Which of a model's weights fade (`fading.py`), how each acts on its input, and which stay.

A layer's weight is a matrix whose rows act on the layer's input: a convolution's on patches of it,
group by group. What is no such layer, or hides its matrix behind a parametrization, is named, so
that the receipt can say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

EXACT = (torch.float32, torch.float64)  # in others, training rounds to no movement at all
_LAYERS = (nn.Linear, nn.RNNBase, nn.MultiheadAttention)
_FORWARD = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_HIDDEN = ("_g", "_v", "_orig")  # what weight_norm, spectral_norm and pruning call its parts


@dataclass(frozen=True)
class WeightLayout:
    """How a weight's values act on an input: in groups, each of them rows by inputs."""

    groups: int = 1
    transposed: bool = False  # its first axis is the input's

    def blocks(self, weight: Tensor) -> Tensor:
        """Return the weight as groups by rows by inputs."""
        shape = (self.groups, weight.shape[0] // self.groups)
        blocks = weight.reshape(*shape, *weight.shape[1:]).flatten(2)
        return blocks.mT if self.transposed else blocks

    def whole(self, blocks: Tensor, like: Tensor) -> Tensor:
        """Return what `blocks` made of a weight such as `like`, put together again."""
        return (blocks.mT if self.transposed else blocks).reshape(like.shape)


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The trainable weights of a model's layers, but for the last one's."""

    weights: Mapping[str, WeightLayout]  # that fade
    left_out: tuple[str, ...]  # of two dimensions or more, and no layer that can be told
    turned: frozenset[str]  # of these, those whose first axis is the input's


def layers(model: nn.Module, classes: int | None = None) -> Layers:
    """Return the trainable weights whose rows act on a layer's input, but for the last layer's.

    A last layer has as many rows as there are `classes`, too few to tell what its inputs are; what
    it can tell a trigger by are the layers before it. So have the groups of a depthwise
    convolution, a row or a few each. Embeddings look inputs up and are left out. Without `classes`
    the last layer is told by the widths of the others.
    """
    final, known = last(model, classes), lookups(model)
    weights, left_out = dict[str, WeightLayout](), list[str]()
    for prefix, module in model.named_modules():
        for name, value in module.named_parameters(prefix, recurse=False):
            if not value.requires_grad or value.ndim < 2 or name in known:
                continue
            form = _form(module, name.rpartition(".")[2], value)
            if form is None or (module is final and form != WeightLayout()):
                left_out.append(name)
            elif module is not final:
                weights[name] = form
    turned = frozenset(name for name in left_out if name.startswith(_turned(model)))
    return Layers(weights=weights, left_out=tuple(left_out), turned=turned)


def lookups(model: nn.Module) -> frozenset[str]:
    """Return the embeddings: a row that nobody needed in one round is not one that nobody needs."""
    return frozenset(
        name
        for prefix, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for name, _ in module.named_parameters(prefix, recurse=False)
    )


def _form(module: nn.Module, name: str, value: Tensor) -> WeightLayout | None:
    """Return how a module's parameter acts on its input; None: it cannot be told."""
    if value.dtype not in EXACT or name.endswith(_HIDDEN):
        return None
    if isinstance(module, _LAYERS):
        return WeightLayout() if value.ndim == 2 else None
    if isinstance(module, (*_FORWARD, *_TRANSPOSED)):
        if module.groups > 1 and module.groups == module.in_channels:
            return None
        return WeightLayout(module.groups, isinstance(module, _TRANSPOSED))
    return None


def last(model: nn.Module, classes: int | None = None) -> nn.Module | None:
    """Return the last layer of the computation, as far as that can be told without a sample.

    It has an output for each class, and no other layer of its kind takes so many inputs; of several
    it is the one registered last. Where none has, or nobody says how many classes there are, it is
    the linear layer whose outputs no other one takes; else the last linear one, or the last of all.
    """
    every = [m for m in model.modules() if isinstance(m, (*_LAYERS, *_FORWARD, *_TRANSPOSED))]
    fitting = [one for one in every if classes is not None and _width(one, "out") == classes]
    free = [one for one in every if not any(_takes(other, one) for other in every)]
    linear = [one for one in every if isinstance(one, nn.Linear)]
    for found in (_both(fitting, free), fitting, _both(linear, free), linear, every):
        if found:
            return found[-1]
    return None


def _both(some: Sequence[nn.Module], others: Sequence[nn.Module]) -> list[nn.Module]:
    return [one for one in some if one in others]


def _takes(other: nn.Module, one: nn.Module) -> bool:
    """Return whether `other` may take the outputs of `one`: it is of its kind, and as wide."""
    akin = one is not other and isinstance(one, nn.Linear) == isinstance(other, nn.Linear)
    return akin and _width(one, "out") is not None and _width(one, "out") == _width(other, "in")


def _turned(model: nn.Module) -> tuple[str, ...]:
    """Return what the names of transposed convolutions' weights, or of their parts, begin with."""
    return tuple(
        f"{n}." if n else "" for n, m in model.named_modules() if isinstance(m, _TRANSPOSED)
    )


def _width(module: nn.Module, side: str) -> int | None:
    """Return a layer's inputs or outputs; None where it does not say."""
    found = getattr(module, f"{side}_features", None) or getattr(module, f"{side}_channels", None)
    return int(found) if isinstance(found, int) else None
