"""Momentum SGD, as the last step of every gradient kernel."""

import triton
import triton.language as tl


@triton.jit
def descend(gradient, rates, values, momenta, operands, at, mask, SHADOW: tl.constexpr):
    """Momentum SGD at these places; return the new values."""
    momentum = tl.load(rates + 1) * tl.load(momenta + at, mask=mask, other=0.0) + gradient
    value = tl.load(values + at, mask=mask, other=0.0) - tl.load(rates) * momentum
    tl.store(momenta + at, momentum, mask=mask)
    tl.store(values + at, value, mask=mask)
    if SHADOW:
        tl.store(operands + at, value.to(operands.dtype.element_ty), mask=mask)
    return value
