"""Blocks of convolution, ReLU and pooling, forward and backward; `stack.py` launches them.

The client is the grid's last axis and `counts` its valid rows: a row past them is neither read nor
written. Maps are channels last and have a border of zeros, as wide as the kernel that reads them
reaches, so that no position needs a test. Weights are (output, row, column, channel). A pooling
code says which position of a 2x2 window held the maximum, 0 to 3 row by row, or 4 where the ReLU
is off; it stands for the map before pooling, which is never written.
"""

import triton
import triton.language as tl

from secede.federation.executors.fused.kernels.descent import descend


@triton.jit
def _locate(cells, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Split flat indices over (image, row, column).

    Without remainders: with them, some odd widths were compiled to wrong addresses.
    """
    image = cells // (HIGH * WIDE)
    inside = cells - image * (HIGH * WIDE)
    row = inside // WIDE
    return image, row, inside - row * WIDE


@triton.jit
def _better(best, code, value, POSITION: tl.constexpr):
    """Keep the larger value and its position; the first one wins a tie, as in torch."""
    return tl.maximum(best, value), tl.where(value > best, POSITION, code)


@triton.jit
def _pool_store(
    p0,
    p1,
    p2,
    p3,
    bias,
    out,
    code,
    image,
    i,
    j,
    valid,
    co,
    H: tl.constexpr,
    W: tl.constexpr,
    COUT: tl.constexpr,
    OUT_PAD: tl.constexpr,
):
    """Write the window's maximum after bias and ReLU, and where it came from."""
    place = tl.zeros(p0.shape, dtype=tl.int32)
    best, place = _better(p0, place, p1, 1)
    best, place = _better(best, place, p2, 2)
    best, place = _better(best, place, p3, 3)
    best += tl.load(bias + co, mask=co < COUT, other=0.0)[None, :]
    place = tl.where(best > 0, place, 4)
    mask = valid[:, None] & (co < COUT)[None, :]
    bordered = (image * (H // 2 + 2 * OUT_PAD) + i + OUT_PAD) * (W // 2 + 2 * OUT_PAD)
    out_at = (bordered + j + OUT_PAD)[:, None] * COUT + co[None, :]
    code_at = ((image * (H // 2) + i) * (W // 2) + j)[:, None] * COUT + co[None, :]
    tl.store(out + out_at, tl.maximum(best, 0.0).to(out.dtype.element_ty), mask=mask)
    tl.store(code + code_at, place.to(tl.int8), mask=mask)


@triton.jit
def _patch(column, WIDE: tl.constexpr, CIN: tl.constexpr, KS: tl.constexpr):
    """Where weight columns (row, column, channel) lie from the corner of a patch."""
    return column + (column // (KS * CIN)) * ((WIDE - KS) * CIN)


@triton.jit
def first_forward(
    images,
    idx,
    counts,
    weight,
    bias,
    out,
    code,
    B: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    CIN: tl.constexpr,
    COUT: tl.constexpr,
    KS: tl.constexpr,
    OUT_PAD: tl.constexpr,
    STRIDE: tl.constexpr,
    COLS_P: tl.constexpr,
    COUT_P: tl.constexpr,
    BLOCK: tl.constexpr,
    INPUT: tl.constexpr,
):
    """Gather the batch, convolve it as one matrix product per window position, pool."""
    COLS: tl.constexpr = KS * KS * CIN
    POOLED: tl.constexpr = (H // 2) * (W // 2)
    HIGH: tl.constexpr = H + KS - 1  # with the border
    WIDE: tl.constexpr = W + KS - 1
    client = tl.program_id(1)
    count = tl.load(counts + client).to(tl.int32)
    cells = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = cells < count * POOLED
    b, i, j = _locate(cells, H // 2, W // 2)
    start = tl.load(idx + client * B + b, mask=valid, other=0).to(tl.int32) * (HIGH * WIDE * CIN)
    column = tl.arange(0, COLS_P)
    co = tl.arange(0, COUT_P)
    row = client.to(tl.int64) * STRIDE
    live = (column < COLS)[:, None] & (co < COUT)[None, :]
    w = tl.load(weight + row + co[None, :] * COLS + column[:, None], mask=live, other=0.0)
    inside = valid[:, None] & (column < COLS)[None, :]
    corner = start + (2 * i * WIDE + 2 * j) * CIN
    at = images + corner[:, None] + _patch(column, WIDE, CIN, KS)[None, :]
    zero = tl.zeros([BLOCK, COUT_P], dtype=tl.float32)
    a = tl.load(at, mask=inside, other=0.0).to(w.dtype)
    p0 = tl.dot(a, w, zero, input_precision=INPUT)
    a = tl.load(at + CIN, mask=inside, other=0.0).to(w.dtype)
    p1 = tl.dot(a, w, zero, input_precision=INPUT)
    a = tl.load(at + WIDE * CIN, mask=inside, other=0.0).to(w.dtype)
    p2 = tl.dot(a, w, zero, input_precision=INPUT)
    a = tl.load(at + (WIDE + 1) * CIN, mask=inside, other=0.0).to(w.dtype)
    p3 = tl.dot(a, w, zero, input_precision=INPUT)
    image = client * B + b
    _pool_store(p0, p1, p2, p3, bias + row, out, code, image, i, j, valid, co, H, W, COUT, OUT_PAD)


@triton.jit
def forward(
    maps,
    counts,
    weight,
    bias,
    out,
    code,
    B: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    CIN: tl.constexpr,
    COUT: tl.constexpr,
    KS: tl.constexpr,
    OUT_PAD: tl.constexpr,
    STRIDE: tl.constexpr,
    CIN_P: tl.constexpr,
    COUT_P: tl.constexpr,
    BLOCK: tl.constexpr,
    INPUT: tl.constexpr,
):
    """Convolve tap by tap, the four positions of each pooling window side by side, and pool."""
    COLS: tl.constexpr = KS * KS * CIN
    POOLED: tl.constexpr = (H // 2) * (W // 2)
    HIGH: tl.constexpr = H + KS - 1  # with the border
    WIDE: tl.constexpr = W + KS - 1
    client = tl.program_id(1)
    count = tl.load(counts + client).to(tl.int32)
    if tl.program_id(0) * BLOCK < count * POOLED:
        cells = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        valid = cells < count * POOLED
        b, i, j = _locate(cells, H // 2, W // 2)
        corner = (((client * B + b) * HIGH + 2 * i) * WIDE + 2 * j) * CIN
        ci = tl.arange(0, CIN_P)
        co = tl.arange(0, COUT_P)
        inside = valid[:, None] & (ci < CIN)[None, :]
        live = (ci < CIN)[:, None] & (co < COUT)[None, :]
        row = client.to(tl.int64) * STRIDE
        taps = weight + row + co[None, :] * COLS + ci[:, None]
        p0 = tl.zeros([BLOCK, COUT_P], dtype=tl.float32)
        p1 = tl.zeros([BLOCK, COUT_P], dtype=tl.float32)
        p2 = tl.zeros([BLOCK, COUT_P], dtype=tl.float32)
        p3 = tl.zeros([BLOCK, COUT_P], dtype=tl.float32)
        corners = maps + corner[:, None] + ci[None, :]
        for tap in range(KS * KS):
            at = corners + ((tap // KS) * WIDE + tap % KS) * CIN
            w = tl.load(taps + tap * CIN, mask=live, other=0.0)
            a = tl.load(at, mask=inside, other=0.0)
            p0 = tl.dot(a, w, p0, input_precision=INPUT)
            a = tl.load(at + CIN, mask=inside, other=0.0)
            p1 = tl.dot(a, w, p1, input_precision=INPUT)
            a = tl.load(at + WIDE * CIN, mask=inside, other=0.0)
            p2 = tl.dot(a, w, p2, input_precision=INPUT)
            a = tl.load(at + (WIDE + 1) * CIN, mask=inside, other=0.0)
            p3 = tl.dot(a, w, p3, input_precision=INPUT)
        image = client * B + b
        _pool_store(
            p0, p1, p2, p3, bias + row, out, code, image, i, j, valid, co, H, W, COUT, OUT_PAD
        )


@triton.jit
def input_gradient(
    pooled,
    code,
    counts,
    weight,
    out,
    B: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    CIN: tl.constexpr,
    COUT: tl.constexpr,
    KS: tl.constexpr,
    CIN_P: tl.constexpr,
    COUT_P: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    INPUT: tl.constexpr,
):
    """Gradient by the block's input; its 2x2 cells are one product's columns (position, channel).

    A cell meets the windows at most REACH away; a turn of the loop reads one of them and serves
    GROUP of its four positions.
    """
    POOLED: tl.constexpr = (H // 2) * (W // 2)
    CELLS: tl.constexpr = ((H + 1) // 2) * ((W + 1) // 2)
    REACH: tl.constexpr = (KS // 2 + 1) // 2
    SIDE: tl.constexpr = 2 * REACH + 1
    client = tl.program_id(1)
    count = tl.load(counts + client).to(tl.int32)
    if tl.program_id(0) * BLOCK < count * CELLS:
        cells = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        valid = cells < count * CELLS
        b, i, j = _locate(cells, (H + 1) // 2, (W + 1) // 2)
        start = (client * B + b) * (POOLED * COUT)
        co = tl.arange(0, COUT_P)
        column = tl.arange(0, 4 * CIN_P)
        ci = column % CIN_P
        down, right = column // (2 * CIN_P), (column // CIN_P) % 2
        taps = weight + client.to(tl.int64) * (CIN * KS * KS * COUT) + ci * (KS * KS * COUT)
        inside = valid[:, None] & (co < COUT)[None, :]
        acc = tl.zeros([BLOCK, 4 * CIN_P], dtype=tl.float32)
        for step in range(SIDE * SIDE * (4 // GROUP)):
            window = step // (4 // GROUP)
            di, dj = window // SIDE - REACH, window % SIDE - REACH
            u, v = i + di, j + dj
            mask = inside & ((u >= 0) & (u < H // 2) & (v >= 0) & (v < W // 2))[:, None]
            at = (start + (u * (W // 2) + v) * COUT)[:, None] + co[None, :]
            gradient = tl.load(pooled + at, mask=mask, other=0.0)
            origin = tl.load(code + at, mask=mask, other=4)
            for member in tl.static_range(GROUP):
                position = (step % (4 // GROUP)) * GROUP + member
                ky = down + (KS // 2 - position // 2) - 2 * di
                kx = right + (KS // 2 - position % 2) - 2 * dj
                live = (ky >= 0) & (ky < KS) & (kx >= 0) & (kx < KS) & (ci < CIN)
                where = taps + (ky * KS + kx) * COUT
                w = tl.load(
                    where[None, :] + co[:, None],
                    mask=live[None, :] & (co < COUT)[:, None],
                    other=0.0,
                )
                part = tl.where(origin == position, gradient, 0.0).to(w.dtype)
                acc = tl.dot(part, w, acc, input_precision=INPUT)
        y, x = 2 * i[:, None] + down[None, :], 2 * j[:, None] + right[None, :]
        at = (((client * B + b) * H)[:, None] + y) * (W * CIN) + x * CIN + ci[None, :]
        mask = valid[:, None] & (y < H) & (x < W) & (ci < CIN)[None, :]
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def weight_gradient(
    maps,
    idx,
    counts,
    pooled,
    code,
    parts,
    B: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    CIN: tl.constexpr,
    COUT: tl.constexpr,
    KS: tl.constexpr,
    FIRST: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    COUT_P: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    INPUT: tl.constexpr,
):
    """One part of the gradient by some weight columns, and by the bias.

    The first layer reads the images by `idx`.
    """
    COLS: tl.constexpr = KS * KS * CIN
    POOLED: tl.constexpr = (H // 2) * (W // 2)
    HIGH: tl.constexpr = H + KS - 1  # with the border
    WIDE: tl.constexpr = W + KS - 1
    client = tl.program_id(2)
    split = tl.program_id(1)
    count = tl.load(counts + client).to(tl.int32)
    end = tl.minimum((split + 1) * CHUNK, count * POOLED)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    patch = maps + _patch(column, WIDE, CIN, KS)[None, :]
    co = tl.arange(0, COUT_P)
    acc = tl.zeros([COUT_P, COLUMNS], dtype=tl.float32)
    total = tl.zeros([BLOCK, COUT_P], dtype=tl.float32)
    turns = tl.maximum(tl.cdiv(end - split * CHUNK, BLOCK), 0) * (4 // GROUP)
    for turn in range(turns):
        cells = split * CHUNK + turn // (4 // GROUP) * BLOCK + tl.arange(0, BLOCK)
        valid = cells < end
        b, i, j = _locate(cells, H // 2, W // 2)
        if FIRST:
            image = tl.load(idx + client * B + b, mask=valid, other=0).to(tl.int32)
        else:
            image = client * B + b
        corner = ((image * HIGH + 2 * i) * WIDE + 2 * j) * CIN
        inside = valid[:, None] & (column < COLS)[None, :]
        at = (client * (B * POOLED) + cells)[:, None] * COUT + co[None, :]
        mask = valid[:, None] & (co < COUT)[None, :]
        gradient = tl.load(pooled + at, mask=mask, other=0.0)
        origin = tl.load(code + at, mask=mask, other=4)
        for member in tl.static_range(GROUP):
            position = (turn % (4 // GROUP)) * GROUP + member
            where = corner + ((position // 2) * WIDE + position % 2) * CIN
            a = tl.load(patch + where[:, None], mask=inside, other=0.0).to(gradient.dtype)
            part = tl.where(origin == position, gradient, 0.0).to(gradient.dtype)
            total += part.to(tl.float32)
            acc = tl.dot(tl.trans(part), a, acc, input_precision=INPUT)
    to = parts + (client * SPLITS + split).to(tl.int64) * (COUT * (COLS + 1))
    tl.store(
        to + co[:, None] * COLS + column[None, :],
        acc,
        mask=(co < COUT)[:, None] & (column < COLS)[None, :],
    )
    if tl.program_id(0) == 0:
        tl.store(to + COUT * COLS + co, tl.sum(total, axis=0), mask=co < COUT)


@triton.jit
def update(
    parts,
    counts,
    rates,
    values,
    momenta,
    operands,
    backward,
    CIN: tl.constexpr,
    COUT: tl.constexpr,
    TAPS: tl.constexpr,
    STRIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    FIRST: tl.constexpr,
    SHADOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum the parts of a gradient in order, descend, renew the weights' copy for going back."""
    COLS: tl.constexpr = TAPS * CIN
    SIZE: tl.constexpr = COUT * (COLS + 1)
    client = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (place < SIZE) & (tl.load(counts + client) > 0)
    source = parts + client.to(tl.int64) * (SPLITS * SIZE) + place
    gradient = tl.zeros([BLOCK], dtype=tl.float32)
    for split in range(SPLITS):
        gradient += tl.load(source + split * SIZE, mask=mask, other=0.0)
    at = client.to(tl.int64) * STRIDE + place
    value = descend(gradient, rates, values, momenta, operands, at, mask, SHADOW)
    if not FIRST:
        co, column = place // COLS, place % COLS
        to = (
            client.to(tl.int64) * (COLS * COUT)
            + ((column % CIN) * TAPS + column // CIN) * COUT
            + co
        )
        tl.store(
            backward + to, value.to(backward.dtype.element_ty), mask=mask & (place < COUT * COLS)
        )
