"""The layout of a model's weights: which can be tested for use, and how each acts on its input.

A layer's weight is a matrix whose rows act on the layer's input: a convolution's on patches of it,
group by group. Weights that are no such matrix, or hide it behind a parametrization, cannot be
removed by `unused_weights.py`; they are named, so that the receipt can say so.
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
    transposed = frozenset(name for name in left_out if name.startswith(_transposed(model)))
    return ModelLayers(weights=weights, left_out=tuple(left_out), transposed=transposed)


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


def _transposed(model: nn.Module) -> tuple[str, ...]:
    """Return what the names of transposed convolutions' weights, or of their parts, begin with."""
    return tuple(
        f"{n}." if n else "" for n, m in model.named_modules() if isinstance(m, _TRANSPOSED)
    )


def _width(module: nn.Module, side: str) -> int | None:
    """Return a layer's inputs or outputs; None where it does not say."""
    width = getattr(module, f"{side}_features", None) or getattr(module, f"{side}_channels", None)
    return int(width) if isinstance(width, int) else None
