"""The diagonal of the empirical Fisher information: the mean of squared per-sample gradients.

Plain stacks of layers need no per-sample gradients: a dense layer's sum of squares is a product of
squares, and a convolution's is one batched product. Other networks go through torch.func.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from secede.errors import ConfigError
from secede.federation.engine import Batch, Loss
from secede.federation.training import trainable

_CHUNK = 2**24  # entries of per-sample gradients held at once
_WITHOUT_WEIGHTS = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.Dropout, nn.Tanh, nn.Identity)


def fisher_diagonal(model: nn.Module, batch: Batch, loss: Loss) -> list[Tensor]:
    """Return the diagonal for each trainable parameter, in evaluation mode."""
    model.eval()  # a sample's gradient must not depend on others of its batch
    sum_squares = _by_layer if _is_plain(model) else _by_sample
    parameters = trainable(model)
    size = max(1, _CHUNK // sum(value.numel() for value in parameters))
    sums = [torch.zeros_like(value) for value in parameters]
    for x, y in zip(batch[0].split(size), batch[1].split(size), strict=True):
        torch._foreach_add_(sums, sum_squares(model, (x, y), loss))
    return [total / len(batch[1]) for total in sums]


def _is_plain(model: nn.Module) -> bool:
    """Return whether it is a stack of layers that `_by_layer` knows, each used once."""
    layers = list(model) if type(model) is nn.Sequential else []
    parameters = [value for layer in layers for value in layer.parameters()]
    return (
        bool(layers)
        and all(map(_is_known, layers))
        and len(set(map(id, parameters))) == len(parameters)
        and all(value.requires_grad for value in parameters)
    )


def _is_known(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and layer.padding != "same"
    if type(layer) is nn.Flatten:
        return layer.start_dim == 1
    return type(layer) is nn.Linear or type(layer) in _WITHOUT_WEIGHTS


def _by_layer(model: nn.Module, batch: Batch, loss: Loss) -> list[Tensor]:
    """Return the sums of squares, from each layer's inputs and output gradients."""
    weighted = list[tuple[nn.Linear | nn.Conv2d, Tensor, Tensor]]()
    value = batch[0]
    for layer in model.children():
        inputs, value = value, layer(value)
        if isinstance(layer, nn.Linear | nn.Conv2d):
            weighted.append((layer, inputs.detach(), value))
    by_output = _output_gradients(value.detach(), batch[1], loss)
    gradients = torch.autograd.grad(value, [output for _, _, output in weighted], by_output)
    squares = list[Tensor]()
    with torch.no_grad():
        for (layer, inputs, _), gradient in zip(weighted, gradients, strict=True):
            squares += _squares(layer, inputs, gradient)
    return squares


def _output_gradients(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Return the gradient of each sample's loss with respect to its outputs."""

    def sample_loss(output: Tensor, label: Tensor) -> Tensor:
        return loss(output[None], label[None])

    gradients: Tensor = vmap(grad(sample_loss))(outputs, labels)
    return gradients


def _squares(layer: nn.Linear | nn.Conv2d, inputs: Tensor, gradients: Tensor) -> list[Tensor]:
    """Return the sums of the squared per-sample gradients of the layer's weight and bias."""
    if isinstance(layer, nn.Conv2d):
        padding = layer.padding if isinstance(layer.padding, tuple) else (0, 0)  # "valid": none
        patches = nn.functional.unfold(
            inputs, layer.kernel_size, layer.dilation, padding, layer.stride
        )
        inputs, gradients = patches.transpose(1, 2), gradients.flatten(2).transpose(1, 2)
    else:
        count = len(inputs)
        inputs, gradients = (
            inputs.view(count, -1, inputs.shape[-1]),
            gradients.view(count, -1, gradients.shape[-1]),
        )
    if inputs.shape[1] == 1:
        weight = gradients[:, 0].square().T @ inputs[:, 0].square()
    else:
        weight = torch.bmm(gradients.transpose(1, 2), inputs).square_().sum(0)
    bias = [] if layer.bias is None else [gradients.sum(1).square_().sum(0)]
    return [weight.view_as(layer.weight), *bias]


def _by_sample(model: nn.Module, batch: Batch, loss: Loss) -> list[Tensor]:
    """Return the sums of squares of per-sample gradients, computed by vmap."""

    def sample_loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(model, values, (x[None],)), y[None])

    values = {
        name: value.detach() for name, value in model.named_parameters() if value.requires_grad
    }
    try:
        gradients = vmap(grad(sample_loss), in_dims=(None, 0, 0))(values, *batch)
    except RuntimeError as error:
        raise ConfigError(
            "rapid-retrain needs per-sample gradients, which torch.func cannot compute for this "
            f"network: {str(error).partition(chr(10))[0]}"
        ) from error
    return [gradients[name].square_().sum(dim=0) for name in values]
