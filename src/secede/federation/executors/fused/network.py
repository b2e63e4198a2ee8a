"""Parse a model for the fused kernels, or refuse it with a reason.

They train blocks of convolution, ReLU and 2x2 max-pooling, then Flatten, then Linear layers with
ReLU in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from secede.federation.executors.executor import Refused

MAX_PATCH = 128  # values under the first convolution's kernel: the inner dimension of a dot
MAX_CHANNELS = 128


@dataclass(frozen=True)
class Convolution:
    """A block of convolution, ReLU and pooling; height and width are those of its input."""

    name: str
    cin: int
    cout: int
    kernel: int
    height: int
    width: int

    @property
    def columns(self) -> int:
        """The weights of an output channel, in the order (row, column, input channel)."""
        return self.kernel * self.kernel * self.cin

    @property
    def size(self) -> int:
        """The number of parameters of the layer, with padding."""
        return self.cout * (self.columns + 1)

    @property
    def bordered(self) -> int:
        """The number of positions of the input with its border."""
        reach = self.kernel - 1
        return (self.height + reach) * (self.width + reach)

    @property
    def pooled(self) -> int:
        """The number of positions after pooling."""
        return (self.height // 2) * (self.width // 2)


@dataclass(frozen=True)
class Dense:
    """A Linear layer; `rows` is `outputs`, rounded up in the last one, for aligned memory."""

    name: str
    inputs: int
    outputs: int
    rows: int

    @property
    def size(self) -> int:
        """The number of parameters of the layer, with padding."""
        return self.rows * (self.inputs + 1)


@dataclass(frozen=True)
class Network:
    """A parsed model: one or more convolution blocks, then one or more Linear layers."""

    convolutions: tuple[Convolution, ...]
    dense: tuple[Dense, ...]

    def max_clients(self, rows: int, batch: int) -> int:
        """Return how many clients with `rows` images each fit the kernels' 32-bit indices."""
        first = self.convolutions[0]
        sizes = [rows * first.bordered * first.cin]
        sizes += [batch * c.bordered * c.cin for c in self.convolutions[1:]]
        sizes += [batch * self.convolutions[-1].pooled * self.convolutions[-1].cout]
        sizes += [batch * d.rows for d in self.dense]
        return (2**31 - 1) // max(sizes)


def parse(model: nn.Module, height: int, width: int) -> Network:
    """Return the parsed model for images of this size, or raise `Refused` with the reason."""
    if type(model) is not nn.Sequential:
        raise Refused(f"the model is a {type(model).__name__}, not an nn.Sequential")
    plain = all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())
    if not plain or list(model.buffers()):
        raise Refused("every parameter must be float32 and trainable, and there may be no buffers")
    layers = list(model._modules.items())  # named_children leaves out a module's second use
    whole = [type(m) is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1) for _, m in layers]
    flatten = whole.index(True) if any(whole) else -1
    if flatten < 3 or flatten % 3:
        raise Refused("expected blocks of Conv2d, ReLU, MaxPool2d(2) and then a whole Flatten")
    convolutions: list[Convolution] = []
    for start in range(0, flatten, 3):
        block = _convolution(layers[start : start + 3], height, width, first=start == 0)
        if convolutions and block.cin != convolutions[-1].cout:
            raise Refused(
                f"layer {block.name} takes {block.cin} channels, but gets {convolutions[-1].cout}"
            )
        convolutions.append(block)
        height, width = height // 2, width // 2
    dense = _dense(layers[flatten + 1 :], convolutions[-1].cout * height * width)
    return Network(tuple(convolutions), dense)


def _convolution(
    block: list[tuple[str, nn.Module]], height: int, width: int, *, first: bool
) -> Convolution:
    (name, conv), (_, relu), (_, pool) = block
    if type(conv) is not nn.Conv2d or type(relu) is not nn.ReLU or type(pool) is not nn.MaxPool2d:
        raise Refused(f"at layer {name}: expected Conv2d, ReLU, MaxPool2d")
    kernel = conv.kernel_size[0]
    options = conv.stride, conv.dilation, conv.groups, conv.padding_mode
    plain = options == ((1, 1), (1, 1), 1, "zeros")
    if not plain or conv.bias is None or kernel % 2 == 0 or conv.kernel_size != (kernel, kernel):
        raise Refused(
            f"layer {name}: expected an odd square kernel, stride 1, no dilation, no groups, "
            "padding with zeros, and a bias"
        )
    if conv.padding not in ("same", (kernel // 2, kernel // 2)):
        raise Refused(f"layer {name}: padding {conv.padding} does not keep the map's size")
    sizes = pool.kernel_size, pool.stride, pool.padding, pool.dilation
    pairs = [tuple(s) if isinstance(s, (tuple, list)) else (s, s) for s in sizes]
    if pairs != [(2, 2), (2, 2), (0, 0), (1, 1)] or pool.ceil_mode or pool.return_indices:
        raise Refused(f"the pooling after layer {name} is no plain MaxPool2d(2)")
    if max(conv.in_channels, conv.out_channels) > MAX_CHANNELS:
        raise Refused(f"layer {name}: more than {MAX_CHANNELS} channels")
    if first and conv.in_channels * kernel * kernel > MAX_PATCH:
        raise Refused(f"layer {name}: the first kernel covers more than {MAX_PATCH} values")
    if min(height, width) < 2:
        raise Refused(f"layer {name}: a {height}x{width} map cannot be pooled")
    return Convolution(name, conv.in_channels, conv.out_channels, kernel, height, width)


def _dense(layers: list[tuple[str, nn.Module]], inputs: int) -> tuple[Dense, ...]:
    if len(layers) % 2 == 0:
        raise Refused("expected Linear (ReLU Linear)* after Flatten")
    dense: list[Dense] = []
    for index, (name, layer) in enumerate(layers):
        if type(layer) is not (nn.ReLU if index % 2 else nn.Linear):
            raise Refused(f"at layer {name}: expected Linear (ReLU Linear)* after Flatten")
        if not isinstance(layer, nn.Linear):
            continue
        if layer.in_features != inputs or layer.bias is None:
            raise Refused(
                f"layer {name}: expected a bias and {inputs} inputs, found {layer.in_features}"
            )
        inputs = layer.out_features
        last = index == len(layers) - 1
        dense.append(
            Dense(name, layer.in_features, inputs, round_up(inputs, 16) if last else inputs)
        )
    return tuple(dense)


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below `number`."""
    return -(-number // multiple) * multiple
