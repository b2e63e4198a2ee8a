"""How long post-training pays, by what the retained clients can measure. Imports no torch.

They compare their accuracy on their own samples with what the global model had before erasing.
Where the start is already as good, no round is needed at all.
"""

from __future__ import annotations

from collections.abc import Sequence

ENOUGH = 0.005  # below the accuracy before erasing


def rounds_that_pay(before: float, after: Sequence[float]) -> int | None:
    """Return after how many rounds to stop; `after` is the accuracy after 0, 1, 2, ... rounds.

    Stop once it is within half a point of `before`; None if no round got there.
    """
    return next((n for n, accuracy in enumerate(after) if accuracy >= before - ENOUGH), None)
