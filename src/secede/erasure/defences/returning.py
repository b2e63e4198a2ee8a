"""Updates of erased clients, known again when somebody else sends them as its own.

What stays of an update when it is destroyed is its digest, and a sketch of at most 64 sums where
the server had it. A copy is refused, and so is what lies at it but for some noise: nearer to it
than a tenth of the way from there to where the round began, and to the other clients' updates, all
of which may come near where training ends at one point. A blend with honest training is not told
from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from secede import state as states
from secede.erasure.defences.fingerprints import VALUES_PER_SUM, Sketches
from secede.errors import RecordError, StorageError
from secede.federation.engine import OwnState, Update
from secede.state import State

Measure = Callable[[State], float | None]
NEAR = 0.1  # of the way from an old update to where the round began, and to the others' updates
FEWEST = 8  # sums of a sketch: fewer may be near each other by chance
NOTED = 64  # digests of a client's older updates that stay


class Returning:
    """The old updates that a home knows again, and those of the client that leaves now.

    `last` is its last update, where the server has it, `seen` are the digests of those that it once
    had, the oldest first. `movable` are the entries that training moves.
    """

    def __init__(
        self, home: Path, movable: Collection[str], last: OwnState | None, seen: Sequence[str]
    ) -> None:
        self._folder, self._movable = home / "sketches" / "updates", movable
        self._sketches, self._last, self._seen = Sketches(self._folder), last, seen

    def keep(self) -> None:
        """Remember the updates of the client that leaves, before they are destroyed."""
        if self._last is not None:
            names = set(self._movable) & self._last.state.keys()
            self._sketches.keep(states.digest(self._last.state), self._last.state, names)
        for digest in self._seen[-NOTED:]:
            self._sketches.note(digest)

    def old(self, updates: Mapping[int, Update], start: State) -> set[int]:
        """Return whose updates, sent in a round that began at `start`, are an erased client's."""
        known = {*self._known, *self._seen}
        if self._last is not None:
            known.add(states.digest(self._last.state))
        found = {client for client, update in updates.items() if update.digest in known}
        sent = {client: update.state for client, update in updates.items()}
        names = set(self._movable) & start.keys()
        try:
            for measure in self._measures(start, names):
                found |= _near(sent, start, measure)
        except RecordError as error:  # the server's own file, and no client's fault
            raise StorageError(str(error)) from error
        return found

    def _measures(self, start: State, names: set[str]) -> Iterator[Measure]:
        """Yield ways to tell how far a state is from an old update, one for each."""
        if self._last is not None:
            last = {name: self._last.state[name] for name in names}
            yield lambda state: states.distance({name: state[name] for name in names}, last)
        if sum(start[name].numel() for name in names) >= FEWEST * VALUES_PER_SUM:
            for digest in self._known:
                yield partial(self._sketches.distance, digest, movable=names)

    @property
    def _known(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.json"))


def _near(sent: Mapping[int, State], start: State, measure: Measure) -> set[int]:
    """Return who is at an old update, and far nearer to it than the start and the others are."""
    there = measure(start)
    away = {client: measure(state) for client, state in sent.items()}
    found = set[int]()
    for client, here in away.items():
        others = [far for other, far in away.items() if other != client and far is not None]
        if here is None or there is None or not others:
            continue
        if here < NEAR * min(there, median(others)):
            found.add(client)
    return found
