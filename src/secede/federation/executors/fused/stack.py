"""One training step of all clients together: one launch per layer.

The maps before pooling are never written, forward or backward. Linear layers use cuBLAS; their
weight gradient is fused with the momentum update. Maps are channels last. Sums have a fixed order:
a weight gradient is split over the batch, and its parts are added in turn. `Stack.step` neither
allocates nor waits, so a CUDA graph can capture it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
from torch import Tensor

from secede.federation.executors.fused.configs import CONFIGS, Config
from secede.federation.executors.fused.kernels import convolution, dense
from secede.federation.executors.fused.network import Convolution, Network, round_up
from secede.federation.executors.fused.parameters import Parameters
from secede.federation.training import Precision


class Stack:
    """The clients' parameters and the buffers of one batch.

    `images` is [samples, height, width, channels] float32 with a border of zeros as wide as the
    first kernel reaches, `labels` [samples] int64, both on the device.
    """

    def __init__(
        self,
        network: Network,
        images: Tensor,
        labels: Tensor,
        *,
        clients: int,
        batch: int,
        learning_rate: float,
        momentum: float,
        precision: Precision = "float32",
    ) -> None:
        self.network, self.images, self.labels = network, images, labels
        self.clients, self.batch = clients, batch
        self.configs = CONFIGS[precision]
        self._compiling: ThreadPoolExecutor | None = None
        self.parameters = Parameters(network, clients, images.device, rounded=precision == "bf16")

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=images.device)

        operand = self.parameters.operands.dtype
        self.rates = torch.tensor([learning_rate, momentum], device=images.device)
        self._maps: list[Tensor] = []  # pooled activations, [client, batch, row, column, channel]
        self._codes: list[Tensor] = []
        self._gradients: list[Tensor] = []  # of the loss by `_maps`
        self._parts: list[Tensor] = []
        for n, c in enumerate(network.convolutions):
            shape = (clients, batch, c.height // 2, c.width // 2, c.cout)
            high, wide = (side + 2 * self._border(n) for side in shape[2:4])
            self._maps.append(empty(clients, batch, high, wide, c.cout, dtype=operand))
            self._codes.append(empty(*shape, dtype=torch.int8))
            self._gradients.append(empty(*shape, dtype=operand))
            self._parts.append(empty(clients, self.configs[_wgrad(n)].splits, c.size))
        self._outputs = [empty(clients, batch, d.rows, dtype=operand) for d in network.dense]
        self._deltas = [empty(clients, batch, d.rows, dtype=operand) for d in network.dense[:-1]]
        # The last layer's logits become their own gradient.
        self._deltas.append(self._outputs[-1])

    def warm_up(self, idx: Tensor, counts: Tensor) -> None:
        """Compile all kernels of a step in parallel; one after another takes many seconds."""
        if triton.knobs.runtime.interpret:
            return
        with ThreadPoolExecutor() as pool:
            self._compiling = pool
            self.step(idx, counts)
            self._compiling = None

    def step(self, idx: Tensor, counts: Tensor) -> None:
        """Train client c one step on the samples idx[c, :counts[c]]; with none it stays."""
        convolutions, linear = range(len(self.network.convolutions)), range(len(self.network.dense))
        for n in convolutions:
            self.conv_forward(n, idx, counts)
        for n in linear:
            self.dense_forward(n)
        self.loss_gradient(idx, counts)
        for n in reversed(linear):
            self.dense_input_gradient(n)
            self.dense_update(n, counts)
        for n in reversed(convolutions):
            self.conv_weight_gradient(n, idx, counts)
            if n:
                self.conv_input_gradient(n, counts)
            self.conv_update(n, counts)

    def conv_forward(self, n: int, idx: Tensor, counts: Tensor) -> None:
        """Run block n over all clients' batches."""
        c, config = self.network.convolutions[n], self.configs["forward" if n else "first_forward"]
        block = _shrunk(config.block, _padded(c.cout), 64)
        grid = (triton.cdiv(self.batch * c.pooled, block), self.clients)
        weight, bias = self.parameters.pointer(c), self.parameters.bias(c)
        sizes = self._sizes(c) | {
            "STRIDE": self.parameters.stride,
            "COUT_P": _padded(c.cout),
            "BLOCK": block,
        }
        sizes["OUT_PAD"] = self._border(n)
        if n:
            self._launch(
                convolution.forward,
                grid,
                self._maps[n - 1],
                counts,
                weight,
                bias,
                self._maps[n],
                self._codes[n],
                **sizes,
                CIN_P=_padded(c.cin),
                **self._options(config),
            )
        else:
            self._launch(
                convolution.first_forward,
                grid,
                self.images,
                idx,
                counts,
                weight,
                bias,
                self._maps[n],
                self._codes[n],
                **sizes,
                COLS_P=_padded(c.columns),
                **self._options(config),
            )

    def conv_input_gradient(self, n: int, counts: Tensor) -> None:
        """Carry the gradient from block n's pooled map back to block n - 1's."""
        c, config = self.network.convolutions[n], self.configs["input_gradient"]
        block = _shrunk(config.block, _padded(c.cin), 32)
        cells = ((c.height + 1) // 2) * ((c.width + 1) // 2)
        self._launch(
            convolution.input_gradient,
            (triton.cdiv(self.batch * cells, block), self.clients),
            self._gradients[n],
            self._codes[n],
            counts,
            self.parameters.backward[n],
            self._gradients[n - 1],
            **self._sizes(c),
            CIN_P=_padded(c.cin),
            COUT_P=_padded(c.cout),
            BLOCK=block,
            GROUP=config.group,
            **self._options(config),
        )

    def conv_weight_gradient(self, n: int, idx: Tensor, counts: Tensor) -> None:
        """Write the parts of block n's weight and bias gradient."""
        c, config = self.network.convolutions[n], self.configs[_wgrad(n)]
        columns = min(config.columns, _padded(c.columns))
        chunk = round_up(triton.cdiv(self.batch * c.pooled, config.splits), config.block)
        self._launch(
            convolution.weight_gradient,
            (triton.cdiv(c.columns, columns), config.splits, self.clients),
            self._maps[n - 1] if n else self.images,
            idx,
            counts,
            self._gradients[n],
            self._codes[n],
            self._parts[n],
            **self._sizes(c),
            FIRST=n == 0,
            SPLITS=config.splits,
            CHUNK=chunk,
            COUT_P=_padded(c.cout),
            BLOCK=config.block,
            COLUMNS=columns,
            GROUP=config.group,
            **self._options(config),
        )

    def conv_update(self, n: int, counts: Tensor) -> None:
        """Descend along the sum of block n's parts."""
        c, splits = self.network.convolutions[n], self.configs[_wgrad(n)].splits
        self._launch(
            convolution.update,
            (triton.cdiv(c.size, 512), self.clients),
            self._parts[n],
            counts,
            self.rates,
            *self.parameters.pointers(c),
            self.parameters.backward[n] if n else self.parameters.values,
            CIN=c.cin,
            COUT=c.cout,
            TAPS=c.kernel**2,
            STRIDE=self.parameters.stride,
            SPLITS=splits,
            FIRST=n == 0,
            SHADOW=self.parameters.rounded,
            BLOCK=512,
        )

    def dense_forward(self, n: int) -> None:
        """Run Linear layer n, with its ReLU unless it is the last, whose bias the loss adds."""
        d, z = self.network.dense[n], self._outputs[n]
        torch.bmm(self._dense_inputs(n), self.parameters.factors(d).mT, out=z)
        if d is not self.network.dense[-1]:
            grid = (triton.cdiv(self.batch * d.rows, 1024), self.clients)
            self._launch(
                dense.bias_relu,
                grid,
                z,
                self.parameters.bias(d),
                B=self.batch,
                OUT=d.rows,
                STRIDE=self.parameters.stride,
                BLOCK=1024,
            )

    def loss_gradient(self, idx: Tensor, counts: Tensor) -> None:
        """Replace the logits by the gradient of the mean cross entropy."""
        d = self.network.dense[-1]
        self._launch(
            dense.loss_gradient,
            (triton.cdiv(self.batch, 16), self.clients),
            self._outputs[-1],
            self.parameters.bias(d),
            self.labels,
            idx,
            counts,
            B=self.batch,
            CLASSES=d.outputs,
            ROW=d.rows,
            STRIDE=self.parameters.stride,
            BLOCK=16,
            WIDE=_padded(d.rows),
        )

    def dense_input_gradient(self, n: int) -> None:
        """Carry the gradient of Linear layer n back to its inputs, through the ReLU before it."""
        into = self._deltas[n - 1] if n else self._gradients[-1].flatten(2)
        torch.bmm(self._deltas[n], self.parameters.factors(self.network.dense[n]), out=into)
        if n:
            size = into.numel()
            self._launch(
                dense.relu_gradient,
                (triton.cdiv(size, 1024),),
                into,
                self._outputs[n - 1],
                size,
                BLOCK=1024,
            )

    def dense_update(self, n: int, counts: Tensor) -> None:
        """Descend along Linear layer n's gradient."""
        d, config = self.network.dense[n], self.configs["dense_update"]
        block, columns = min(config.block, _padded(d.rows)), min(config.columns, _padded(d.inputs))
        self._launch(
            dense.update,
            (triton.cdiv(d.inputs, columns), triton.cdiv(d.rows, block), self.clients),
            self._deltas[n],
            self._dense_inputs(n),
            counts,
            self.rates,
            *self.parameters.pointers(d),
            B=self.batch,
            OUT=d.rows,
            IN=d.inputs,
            STRIDE=self.parameters.stride,
            SHADOW=self.parameters.rounded,
            BLOCK=block,
            COLUMNS=columns,
            DEPTH=min(32, _padded(self.batch)),
            **self._options(config),
        )

    def _launch(self, kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        if self._compiling is None:
            kernel[grid](*args, **constants)
        else:
            self._compiling.submit(kernel.warmup, *args, grid=grid, **constants)

    def _dense_inputs(self, n: int) -> Tensor:
        return self._outputs[n - 1] if n else self._maps[-1].flatten(2)

    def _border(self, n: int) -> int:
        """Return the border of block n's pooled map: as wide as the next kernel reaches."""
        following = self.network.convolutions[n + 1 : n + 2]
        return following[0].kernel // 2 if following else 0

    def _sizes(self, c: Convolution) -> dict[str, int]:
        return {
            "B": self.batch,
            "H": c.height,
            "W": c.width,
            "CIN": c.cin,
            "COUT": c.cout,
            "KS": c.kernel,
        }

    def _options(self, config: Config) -> dict[str, Any]:
        # Triton's interpreter, in which tests run without a GPU, knows no split products.
        product = "ieee" if triton.knobs.runtime.interpret else config.product
        return {"INPUT": product, "num_warps": config.warps, "num_stages": config.stages}


def _wgrad(n: int) -> str:
    return "weight_gradient" if n else "first_weight_gradient"


def _shrunk(block: int, channels: int, usual: int) -> int:
    """Return fewer rows for many channels, so that the accumulators fit."""
    return max(16, block * usual // max(usual, channels))


def _padded(number: int) -> int:
    """Return the block size that holds this many channels: a power of two that tl.dot accepts."""
    return max(16, int(triton.next_power_of_2(number)))
