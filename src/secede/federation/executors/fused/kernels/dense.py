"""What Linear layers need beside cuBLAS, and the loss."""

import triton
import triton.language as tl

from secede.federation.executors.fused.kernels.descent import descend


@triton.jit
def bias_relu(
    z, bias, B: tl.constexpr, OUT: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """Add the bias and clip at zero, in place."""
    client = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < B * OUT
    shift = tl.load(bias + client.to(tl.int64) * STRIDE + place % OUT, mask=mask, other=0.0)
    at = z + client * (B * OUT) + place
    value = tl.load(at, mask=mask, other=0.0).to(tl.float32) + shift
    tl.store(at, tl.maximum(value, 0.0).to(z.dtype.element_ty), mask=mask)


@triton.jit
def relu_gradient(gradient, activation, size, BLOCK: tl.constexpr):
    """Clear the gradient where the activation is off, in place."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    off = tl.load(activation + place, mask=place < size, other=1.0).to(tl.float32) <= 0
    nothing = tl.zeros([BLOCK], dtype=gradient.dtype.element_ty)
    tl.store(gradient + place, nothing, mask=(place < size) & off)


@triton.jit
def loss_gradient(
    z,
    bias,
    labels,
    idx,
    counts,
    B: tl.constexpr,
    CLASSES: tl.constexpr,
    ROW: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Turn logits without bias into the gradient of the mean cross entropy, in place.

    Rows past the valid ones become zero.
    """
    client = tl.program_id(1)
    count = tl.load(counts + client).to(tl.int32)
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, WIDE)
    known = (k < CLASSES)[None, :] & (b < count)[:, None]
    at = z + (client * B + b)[:, None] * ROW + k[None, :]
    shift = tl.load(bias + client.to(tl.int64) * STRIDE + k, mask=k < CLASSES, other=0.0)
    logits = tl.load(at, mask=known, other=0.0).to(tl.float32) + shift[None, :]
    logits = tl.where((k < CLASSES)[None, :], logits, float("-inf"))
    weight = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    sample = tl.load(idx + client * B + b, mask=b < count, other=0)
    label = tl.load(labels + sample, mask=b < count, other=0).to(tl.int32)
    target = tl.where(k[None, :] == label[:, None], 1.0, 0.0)
    gradient = (weight / tl.sum(weight, axis=1)[:, None] - target) / tl.maximum(count, 1).to(
        tl.float32
    )
    gradient = tl.where(known, gradient, 0.0).to(z.dtype.element_ty)
    tl.store(at, gradient, mask=(k < ROW)[None, :] & (b < B)[:, None])


@triton.jit
def update(
    gradient,
    inputs,
    counts,
    rates,
    values,
    momenta,
    operands,
    B: tl.constexpr,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    STRIDE: tl.constexpr,
    SHADOW: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    INPUT: tl.constexpr,
):
    """Weight gradient of one tile of a Linear layer, and its descent.

    The first tile of a row does the bias too.
    """
    client = tl.program_id(2)
    count = tl.load(counts + client).to(tl.int32)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    acc = tl.zeros([BLOCK, COLUMNS], dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, count, DEPTH):
        b = first + tl.arange(0, DEPTH)
        row = client * B + b
        mask = (b < count)[None, :] & (o < OUT)[:, None]
        g = tl.load(gradient + row[None, :] * OUT + o[:, None], mask=mask, other=0.0)
        mask = (b < count)[:, None] & (n < IN)[None, :]
        a = tl.load(inputs + row[:, None] * IN + n[None, :], mask=mask, other=0.0)
        acc = tl.dot(g, a, acc, input_precision=INPUT)
        total += tl.sum(g.to(tl.float32), axis=1)
    start = client.to(tl.int64) * STRIDE
    mask = (o < OUT)[:, None] & (n < IN)[None, :] & (count > 0)
    descend(
        acc, rates, values, momenta, operands, start + o[:, None] * IN + n[None, :], mask, SHADOW
    )
    if tl.program_id(0) == 0:
        at = start + OUT * IN + o
        descend(total, rates, values, momenta, operands, at, (o < OUT) & (count > 0), SHADOW)
