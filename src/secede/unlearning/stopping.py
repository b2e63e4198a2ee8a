"""When post-training may stop, by the retained clients' accuracy. Imports no torch.

The clients compare the accuracy on their own samples with that before the erasure. If the start is
as good already, no round is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

TOLERANCE = 0.005  # below the accuracy before the erasure


def rounds_that_pay(before: float, after: Sequence[float]) -> int | None:
    """Return the number of rounds after which to stop, or None if no round is good enough.

    `after` is the accuracy after 0, 1, 2, ... rounds; good enough is half a point below `before`.
    """
    return next(
        (number for number, accuracy in enumerate(after) if accuracy >= before - TOLERANCE), None
    )
