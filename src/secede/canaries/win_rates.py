"""How often a model from before an erasure likes the drawn candidate of two better, as measured.

Five clients of 1,500 embedded MNIST images each plant ten made-up canaries of ten candidates;
ten rounds of batches of 32 at a learning rate of 0.02; two seeds. Other data, networks, rounds and
numbers of clients give other rates; `python -m benchmarks.canary_effect` prints these. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = (
    "measured on embedded MNIST, five clients of 1,500 images, ten rounds, ten candidates; yours "
    "may differ"
)


@dataclass(frozen=True)
class WinRate:
    """The chance that a drawn candidate beats one other, of canaries with so many copies."""

    network: str
    copies: int
    rate: float


WIN_RATES = (
    WinRate("mlp", 1, 0.823),
    WinRate("mlp", 2, 0.960),
    WinRate("mlp", 3, 0.990),
    WinRate("small-cnn", 1, 0.908),
    WinRate("small-cnn", 2, 0.962),
    WinRate("small-cnn", 3, 0.993),
)


def win_rates(copies: int) -> tuple[WinRate, ...]:
    """Return what was measured with so many copies, or with the most below that."""
    counts = {each.copies for each in WIN_RATES if each.copies <= copies}
    nearest = max(counts, default=min(each.copies for each in WIN_RATES))
    return tuple(each for each in WIN_RATES if each.copies == nearest)
