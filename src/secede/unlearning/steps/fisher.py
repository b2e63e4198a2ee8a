"""The diagonal of the empirical Fisher information: the mean of squared per-sample gradients.

Plain stacks of layers need no single gradient: a dense layer's squares sum up to a product of
squares, and a convolution's come of one batched product. Other networks go through torch.func.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from secede.errors import ConfigError
from secede.federation.engine import Batch
from secede.federation.training import Loss, trainable

_CHUNK = 2**24  # entries of per-sample gradients held at once
_WITHOUT_WEIGHTS = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.Dropout, nn.Tanh, nn.Identity)


def fisher_diagonal(model: nn.Module, batch: Batch, loss: Loss) -> list[Tensor]:
    """Return the diagonal, for each parameter that can move, in evaluation mode."""
    model.eval()  # a sample's gradient must not hang on the others of its batch
    summed = _by_layer if _is_plain(model) else _by_sample
    parameters = trainable(model)
    size = max(1, _CHUNK // sum(value.numel() for value in parameters))
    sums = [torch.zeros_like(value) for value in parameters]
    for x, y in zip(batch[0].split(size), batch[1].split(size), strict=True):
        torch._foreach_add_(sums, summed(model, (x, y), loss))
    return [total / len(batch[1]) for total in sums]


def _is_plain(model: nn.Module) -> bool:
    """Say whether it is a stack of layers, each used once, of the kinds that `_by_layer` knows."""
    layers = list(model) if type(model) is nn.Sequential else []
    movable = [value for layer in layers for value in layer.parameters()]
    return (
        bool(layers)
        and all(map(_is_known, layers))
        and len(set(map(id, movable))) == len(movable)
        and all(value.requires_grad for value in movable)
    )


def _is_known(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and layer.padding != "same"
    if type(layer) is nn.Flatten:
        return layer.start_dim == 1
    return type(layer) is nn.Linear or type(layer) in _WITHOUT_WEIGHTS


def _by_layer(model: nn.Module, batch: Batch, loss: Loss) -> list[Tensor]:
    """Return the summed squares from what goes into each layer and what comes back to it."""
    weighted = list[tuple[nn.Linear | nn.Conv2d, Tensor, Tensor]]()
    value = batch[0]
    for layer in model.children():
        before, value = value, layer(value)
        if isinstance(layer, nn.Linear | nn.Conv2d):
            weighted.append((layer, before.detach(), value))
    slopes = _slopes(value.detach(), batch[1], loss)
    returned = torch.autograd.grad(value, [output for _, _, output in weighted], slopes)
    squares = list[Tensor]()
    with torch.no_grad():
        for (layer, before, _), back in zip(weighted, returned, strict=True):
            squares += _squares(layer, before, back)
    return squares


def _slopes(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Return the gradient of each sample's own loss by its outputs."""

    def one(output: Tensor, label: Tensor) -> Tensor:
        return loss(output[None], label[None])

    slopes: Tensor = vmap(grad(one))(outputs, labels)
    return slopes


def _squares(layer: nn.Linear | nn.Conv2d, before: Tensor, back: Tensor) -> list[Tensor]:
    """Return the summed squares of every sample's gradient by the layer's weight and bias."""
    if isinstance(layer, nn.Conv2d):
        padding = layer.padding if isinstance(layer.padding, tuple) else (0, 0)  # "valid": none
        patches = nn.functional.unfold(
            before, layer.kernel_size, layer.dilation, padding, layer.stride
        )
        before, back = patches.transpose(1, 2), back.flatten(2).transpose(1, 2)
    else:
        count = len(before)
        before, back = (
            before.view(count, -1, before.shape[-1]),
            back.view(count, -1, back.shape[-1]),
        )
    if before.shape[1] == 1:
        weight = back[:, 0].square().T @ before[:, 0].square()
    else:
        weight = torch.bmm(back.transpose(1, 2), before).square_().sum(0)
    bias = [] if layer.bias is None else [back.sum(1).square_().sum(0)]
    return [weight.view_as(layer.weight), *bias]


def _by_sample(model: nn.Module, batch: Batch, loss: Loss) -> list[Tensor]:
    """Return the summed squares of gradients that are taken one by one, side by side."""

    def one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(model, values, (x[None],)), y[None])

    values = {
        name: value.detach() for name, value in model.named_parameters() if value.requires_grad
    }
    try:
        found = vmap(grad(one), in_dims=(None, 0, 0))(values, *batch)
    except RuntimeError as error:
        raise ConfigError(
            "rapid-retrain needs gradients of single samples, which torch.func cannot take of "
            f"this network: {str(error).partition(chr(10))[0]}"
        ) from error
    return [found[name].square_().sum(dim=0) for name in values]
