"""Clients' commitments to their canaries, which come with updates: the first one of each counts.

None of them ends a training: a malformed one, or another one than before, is named and ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from flwr.app import Message

from secede.erasure import CanaryCommitment
from secede.errors import GuardError
from secede.flower.protocol import messages
from secede.text import list_first

logger = logging.getLogger(__name__)

Told = tuple[CanaryCommitment | None, str]  # a commitment, or why there is none
_SHOWN = 8  # names


def pop_told(reply: Message, client: str) -> Told:
    """Take out of an update what its client says of its canaries."""
    try:
        return messages.pop_canaries(reply)
    except GuardError as error:
        logger.warning(f"client {client!r} counts as one without canaries: {error}")
        return None, ""


class Commitments:
    """What clients committed to so far, by name; each thing is logged once in a training."""

    def __init__(self, known: Mapping[str, CanaryCommitment]) -> None:
        self._known, self._logged, self._is_first = dict(known), set[tuple[str, str]](), True

    def take(self, client: str, told: Told) -> CanaryCommitment | None:
        """Return a commitment that is to be recorded: a client's first one."""
        committed, reason = told
        if committed is None:
            if reason:
                self._log(client, reason)
            return None
        known = self._known.setdefault(client, committed)
        if known != committed:
            self._log(
                client,
                "it commits to other canaries than before: the first commitment counts, and "
                "readings of others are not believed",
            )
        return committed if known is committed else None

    def log_missing(self, clients: Iterable[str]) -> None:
        """Log once, after a round, which of its clients planted no canaries."""
        missing = sorted({*clients} - self._known.keys())
        if missing and self._is_first:
            logger.info(
                f"no canaries at {list_first(missing, _SHOWN)}: whether a trace is left after an "
                "erasure will stay undetermined there (with_canaries in the client's app plants "
                "some)"
            )
        self._is_first = False

    def _log(self, client: str, line: str) -> None:
        if (client, line) not in self._logged:
            self._logged.add((client, line))
            logger.warning(f"client {client!r}: {line}")
