"""What makes a federation in one process repeat itself: its clock, and its sites' secrets.

The server's short waits are for sites that do not answer. On a busy machine a site that does would
else be too late, since server and sites take turns here: the clock stands still while a site works.
Sites round counts by a secret of their own. One that is drawn anew would let the gate open a round
earlier or later, and two erasures end at different models.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import secede.erasure.workflow.checked_engine as checked_engine
import secede.flower.client.counted_predictions as counted_predictions
import secede.flower.rounds.engine as engine
import secede.flower.secagg.grid as secagg_grid
import secede.waiting as waiting


class Clock:
    """The module `time`, but for the seconds in which a site worked."""

    def __init__(self) -> None:
        self._worked = 0.0
        self._since: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        """Return the seconds in which the server waited or worked."""
        return (time.monotonic() if self._since is None else self._since) - self._worked

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop the clock; a site may ask another within."""
        if self._since is not None:
            yield
            return
        self._since = since = time.monotonic()
        try:
            yield
        finally:
            self._worked += time.monotonic() - since
            self._since = None


CLOCK = Clock()
for module in (checked_engine, engine, secagg_grid, waiting):
    vars(module)["time"] = CLOCK
# What sites draw still differs by their samples.
vars(counted_predictions)["secrets"] = SimpleNamespace(token_bytes=bytes)
