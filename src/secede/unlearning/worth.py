"""How long post-training pays, by what the retained clients can measure. Imports no torch.

They compare their accuracy on their own samples with what the global model had before erasing.
Where the start is already as good, no round is needed at all.
"""

from __future__ import annotations

from collections.abc import Sequence

ENOUGH = 0.005  # below the accuracy before erasing
GAIN = 0.001  # that a round must bring to be worth the next


def rounds_that_pay(before: float, after: Sequence[float]) -> int:
    """Return after how many rounds to stop; `after` is the accuracy after 0, 1, 2, ... rounds.

    Stop once it is within half a point of `before`, or when a round has gained less than a tenth
    of a point; the last round that there is, if neither happens.
    """
    for number, accuracy in enumerate(after):
        if accuracy >= before - ENOUGH:
            return number
        if number and accuracy - after[number - 1] < GAIN:
            return number
    return len(after) - 1
