"""Rapid retraining: retrain from scratch with steps scaled by each parameter's curvature.

Liu, Xu, Yuan, Wang, Li 2022, "The Right to be Forgotten in Federated Learning: An Efficient
Realization with Rapid Retraining": the gradient's mean is divided by the mean of the diagonal
empirical Fisher information, both with momentum and bias correction; eta and betas are the paper's.
Our choices: the division is damped (else a flat parameter leaps), the Fisher information is taken
of a part of each batch, with fixed normalisation and no dropout, and momenta restart each round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import Batch, ClientSide, Loss, Update, aggregate
from secede.federation.training import batch_loss, trainable
from secede.state import State
from secede.unlearning.method import Method, Recovered, Reply, Server, Start, ask_each

_CHUNK = 2**24  # entries of per-sample gradients held at once
_WITHOUT_WEIGHTS = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.Dropout, nn.Tanh, nn.Identity)


@dataclass(frozen=True, kw_only=True)
class RapidRetrain(Method):
    """Retrain from a fresh state; the retained clients take damped quasi-Newton steps."""

    learning_rate: float = 0.001
    momentum: float = 0.9  # beta 1, of the gradient
    fisher_momentum: float = 0.999  # beta 2, of the squared Fisher diagonal
    damping: float = 0.001  # added to the divisor: the rate is at most learning_rate / damping
    fisher_samples: int = 32  # of each batch, at most

    def __post_init__(self) -> None:
        for key in ("learning_rate", "damping"):
            if not 0 < getattr(self, key) < math.inf:
                raise ConfigError(f"{key} must be above 0 and finite, got {getattr(self, key)}")
        for key in ("momentum", "fisher_momentum"):
            if not 0 <= getattr(self, key) < 1:
                raise ConfigError(f"{key} must be from 0 to below 1, got {getattr(self, key)}")
        if self.fisher_samples < 1:
            raise ConfigError(f"fisher_samples must be 1 or more, got {self.fisher_samples}")

    def start(self, server: Server) -> Start:
        """Return a fresh state."""
        return Start(state=server.fresh_state())

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Let the retained clients train round `number` and average them."""
        replies, cost = ask_each(
            server.engine,
            server.retained,
            lambda side: self.train(side, number),
            global_state=state,
            number=number,
        )
        updates = [
            Update(client, reply.state, reply.samples)
            for client, reply in zip(server.retained, replies, strict=True)
        ]
        return Recovered(state=aggregate(updates), cost=cost, memory=memory)

    def train(self, side: ClientSide, number: int) -> Reply:
        """Train a client for its local epochs in round `number`."""
        model = side.fresh_model(0)
        states.load_into(model, side.global_state)
        optimiser, gradient_count = _QuasiNewton(self, model), 0
        for epoch in range(side.training.epochs):
            pass_number = (number - 1) * side.training.epochs + epoch
            for inputs, labels in side.batches(side.training.batch_size, pass_number):
                chosen = (inputs[: self.fisher_samples], labels[: self.fisher_samples])
                fisher = fisher_diagonal(model, chosen, side.loss)
                model.train()
                loss = batch_loss(model, inputs, labels, loss=side.loss, precision="float32")
                gradients = torch.autograd.grad(loss, optimiser.parameters, materialize_grads=True)
                optimiser.step(gradients, fisher)
                gradient_count += len(labels) + len(chosen[1])
        return Reply(state=states.of(model), gradient_samples=gradient_count, samples=side.samples)


class _QuasiNewton:
    """Damped quasi-Newton steps of one client's local training, and their momenta."""

    def __init__(self, settings: RapidRetrain, model: nn.Module) -> None:
        self.parameters: list[Tensor] = list(trainable(model))
        self._settings, self._count = settings, 0
        self._gradient = [torch.zeros_like(value) for value in self.parameters]
        self._curvature = [torch.zeros_like(value) for value in self.parameters]

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...], fisher: list[Tensor]) -> None:
        """Step by the mean gradient over the root of the mean squared Fisher diagonal."""
        settings, self._count = self._settings, self._count + 1
        squared = torch._foreach_mul(fisher, fisher)
        torch._foreach_lerp_(self._gradient, gradients, 1 - settings.momentum)
        torch._foreach_lerp_(self._curvature, squared, 1 - settings.fisher_momentum)
        divisor = torch._foreach_div(self._curvature, 1 - settings.fisher_momentum**self._count)
        torch._foreach_sqrt_(divisor)
        torch._foreach_add_(divisor, settings.damping)
        rate = settings.learning_rate / (1 - settings.momentum**self._count)
        torch._foreach_addcdiv_(self.parameters, self._gradient, divisor, value=-rate)


def fisher_diagonal(model: nn.Module, batch: Batch, loss: Loss) -> list[Tensor]:
    """Return the Fisher information's diagonal for each trainable parameter, in evaluation mode.

    That is the mean of squared per-sample gradients. Plain stacks of layers need none of these: a
    dense layer's sum of squares is a product of squares, a convolution's is one batched product.
    Other networks go through torch.func.
    """
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
