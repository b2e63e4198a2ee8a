"""All clients' parameters and momenta as rows of one tensor, in the layout of the kernels.

A row holds the layers in order: a layer's weights (output, row, column, channel), then its biases.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from secede.federation.executors.fused.network import Convolution, Dense, Network, round_up
from secede.state import State

Layer = Convolution | Dense
ALIGNMENT = 64  # elements: the start of a layer's parameters is a multiple


class Parameters:
    """One row per client; `operands` are what products read: with `rounded`, bf16 copies."""

    def __init__(
        self, network: Network, clients: int, device: torch.device, *, rounded: bool
    ) -> None:
        self._network = network
        self._layers: tuple[Layer, ...] = (*network.convolutions, *network.dense)
        ends = list(
            itertools.accumulate(
                (round_up(layer.size, ALIGNMENT) for layer in self._layers), initial=0
            )
        )
        self._starts, self.stride = dict(zip(self._layers, ends, strict=False)), ends[-1]
        self.rounded = rounded
        self.values = torch.zeros(clients, self.stride, device=device)
        self.momenta = torch.zeros_like(self.values)
        self.operands = self.values.bfloat16() if self.rounded else self.values
        # Weights as the input gradient reads them, [client, cin, taps, cout]: none for the first.
        self.backward = [
            self.operands.new_zeros(clients if n else 0, c.cin, c.kernel**2, c.cout)
            for n, c in enumerate(network.convolutions)
        ]

    def load(self, starts: Sequence[State]) -> None:
        """Load the clients' states and set all momenta to zero."""
        if all(start is starts[0] for start in starts):  # as in a round
            self.values[: len(starts)] = self._row(starts[0])
        else:
            for client, start in enumerate(starts):
                self.values[client] = self._row(start)
        self.momenta.zero_()
        if self.rounded:
            self.operands.copy_(self.values)
        for c, backward in zip(self._network.convolutions[1:], self.backward[1:], strict=True):
            weight = self._weights(self.values, c).unflatten(2, (c.kernel**2, c.cin))
            backward.copy_(weight.permute(0, 3, 2, 1))

    def read(self) -> dict[str, Tensor]:
        """Return a copy of all clients' states, stacked, with torch's names and layouts."""
        stacked: dict[str, Tensor] = {}
        for layer in self._layers:
            weight, bias = self._weights(self.values, layer), self.bias(layer)
            if isinstance(layer, Convolution):
                shape = (layer.kernel, layer.kernel, layer.cin)
                weight = weight.unflatten(2, shape).permute(0, 1, 4, 2, 3)
            else:
                weight = weight[:, : layer.outputs]
                if layer is self._network.dense[0]:
                    depth, high, wide = self._pooled_shape
                    weight = weight.unflatten(2, (high, wide, depth)).permute(0, 1, 4, 2, 3)
                    weight = weight.flatten(2)
            stacked[f"{layer.name}.weight"] = weight.clone(memory_format=torch.contiguous_format)
            outputs = layer.cout if isinstance(layer, Convolution) else layer.outputs
            stacked[f"{layer.name}.bias"] = bias[:, :outputs].clone(
                memory_format=torch.contiguous_format
            )
        return stacked

    def factors(self, layer: Layer) -> Tensor:
        """Return a layer's weights, [client, output, input], as products read them."""
        return self._weights(self.operands, layer)

    def pointer(self, layer: Layer) -> Tensor:
        """Return where a layer's operands start in each row, for a kernel."""
        return self._from(self.operands, layer)

    def pointers(self, layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
        """Return where a layer's values, momenta and operands start in each row."""
        values, momenta = self._from(self.values, layer), self._from(self.momenta, layer)
        return values, momenta, self.pointer(layer)

    def bias(self, layer: Layer) -> Tensor:
        """Return where a layer's biases start in each row."""
        return self.values[:, self._starts[layer] + _weight_count(layer) :]

    def _row(self, state: State) -> Tensor:
        row = self.values.new_zeros(self.stride)
        for layer, start in self._starts.items():
            weight, bias = state[f"{layer.name}.weight"], state[f"{layer.name}.bias"]
            if isinstance(layer, Convolution):
                weight = weight.permute(0, 2, 3, 1)
            elif layer is self._network.dense[0]:
                weight = weight.unflatten(1, self._pooled_shape).permute(0, 2, 3, 1)
            bias_start = start + _weight_count(layer)
            row[start : start + weight.numel()] = weight.flatten()
            row[bias_start : bias_start + bias.numel()] = bias
        return row

    @property
    def _pooled_shape(self) -> tuple[int, int, int]:
        last = self._network.convolutions[-1]
        return last.cout, last.height // 2, last.width // 2

    def _from(self, rows: Tensor, layer: Layer) -> Tensor:
        return rows[:, self._starts[layer] :]

    def _weights(self, rows: Tensor, layer: Layer) -> Tensor:
        shape = (
            (layer.cout, layer.columns)
            if isinstance(layer, Convolution)
            else (layer.rows, layer.inputs)
        )
        weights: Tensor = self._from(rows, layer)[:, : _weight_count(layer)].unflatten(1, shape)
        return weights


def _weight_count(layer: Layer) -> int:
    if isinstance(layer, Convolution):
        return layer.cout * layer.columns
    return layer.rows * layer.inputs
