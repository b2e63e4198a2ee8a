"""The log of completed rounds: what an erasure needs to know of each, and never an update.

One line of JSON for each, appended and synced after the model's file. A line that a kill cut off is
no line: its round counts as not completed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from secede import files
from secede.erasure.canonical_json import to_canonical
from secede.erasure.types import Count, Digest, Document, Name, Timestamp, describe_errors
from secede.errors import RecordError, StorageError
from secede.flower.protocol.nodes import Node, check_names

_TAIL = 1 << 16  # bytes of the log that are looked at first


class Contribution(Document):
    """One client in one mean: its weight there, and its update's digest."""

    client: Name
    node: Annotated[str, Field(pattern=r"^[0-9]{1,20}$")]  # ids do not fit into JSON's numbers
    key: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    digest: Digest | None = None  # None: its client told none, under secure aggregation
    # L2 over what training moves, from the mean: tells how far off the mean of the others is.
    distance: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    def identity(self) -> Node:
        """Return who it is."""
        return Node(name=self.client, node=int(self.node), key=self.key)


class Round(Document):
    """A completed round, or what came of an erasure."""

    version: Literal[1] = 1
    number: Count  # counted over all trainings of this federation
    training: Count  # which of them
    run: str
    strategy: str
    start: Digest  # of the model that the clients trained from
    model: Digest
    clients: tuple[Contribution, ...]
    config: dict[str, Any] = Field(default_factory=dict)  # that the clients were given
    server_round: Count | None = None  # the number that they were told, within their training
    erased: Name | None = None  # a client whose erasure ended with this model
    secure: bool = False  # under SecAgg+: digests are what clients told
    at: Timestamp

    def share(self, client: str) -> float:
        """Return a client's share in this mean; 0 if it took no part."""
        total = sum(each.weight for each in self.clients)
        return sum(each.weight for each in self.clients if each.client == client) / (total or 1)


class RoundLog:
    """The file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rounds(self) -> list[Round]:
        """Return all completed rounds, the oldest first."""
        if not self._path.exists():
            return []
        *lines, _cut = self._path.read_bytes().split(b"\n")
        return [self._round(line) for line in lines]

    def clients(self) -> tuple[Node, ...]:
        """Return all who ever contributed, in the order in which they came; ids are the last."""
        found, every = dict[str, Node](), dict[tuple[str, str], Node]()
        for completed in self.rounds():
            for each in completed.clients:
                node = each.identity()
                found[each.client] = every[node.name, node.identity] = node
        check_names(every.values())
        return tuple(found.values())

    def carried(self) -> dict[str, frozenset[str]]:
        """Return whom the models of all rounds carry: who trained them, and those before them."""
        rounds = self.rounds()
        found, whom = dict[str, frozenset[str]](), list[frozenset[str]]()
        for each, before in zip(rounds, _origins(rounds), strict=True):
            kept = frozenset[str]() if before is None else whom[before] - {each.erased or ""}
            whom.append(kept | {c.client for c in each.clients})
            found[each.model] = whom[-1]
        return found

    def made(self) -> list[Round]:
        """Return the rounds and erasures that led to the last model, the oldest first.

        Trainings that it did not go on from, and those that were begun from scratch since, are not
        among them.
        """
        rounds = self.rounds()
        origins, found = _origins(rounds), list[Round]()
        place = len(rounds) - 1 if rounds else None
        while place is not None:
            found.append(rounds[place])
            place = origins[place]
        return found[::-1]

    def knows(self, model: str) -> bool:
        """Return whether a round or an erasure ended with this model."""
        return any(each.model == model for each in self.rounds())

    def last(self) -> Round | None:
        """Return the last completed round, without reading the others."""
        if not self._path.exists():
            return None
        tail, size = b"", _TAIL
        with self._path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            while tail.count(b"\n") < 2 and len(tail) < end:  # a whole line, and one before
                file.seek(max(0, end - size))
                tail, size = file.read(size), 2 * size
        lines = tail.split(b"\n")[:-1]
        return self._round(lines[-1]) if lines else None

    def append(self, completed: Round) -> None:
        """Add a round; what a kill cut off before is removed first."""
        line = to_canonical(completed.model_dump(mode="json")).decode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and not self._is_whole():
                os.truncate(self._path, self._path.read_bytes().rfind(b"\n") + 1)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from error
        files.append_line(self._path, line)

    def _is_whole(self) -> bool:
        with self._path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            return file.read(1) in (b"", b"\n")

    def _round(self, line: bytes) -> Round:
        try:
            return Round.model_validate(json.loads(line), strict=False)
        except (ValueError, ValidationError) as error:
            told = describe_errors(error) if isinstance(error, ValidationError) else error
            raise RecordError(
                f"{self._path}: damaged ({told}); restore it from a backup"
            ) from error


def _origins(rounds: Sequence[Round]) -> list[int | None]:
    """Return for each round the place of the one that it went on from; None: it began anew."""
    found, places = list[int | None](), dict[str, int]()
    for place, each in enumerate(rounds):
        before = place - 1 if place else None
        if not each.erased:  # an erasure starts from the model before it, however long it took
            # The first of a training may start anew; a user may have touched a later start.
            same = before is not None and rounds[before].training == each.training
            before = places.get(each.start, before if same else None)
        found.append(before)
        places[each.model] = place
    return found


class PendingContributions:
    """Who took part in the rounds of an erasure, until one of them is settled on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, start: str, clients: Sequence[Contribution]) -> None:
        """Remember who took part in the round that began at `start`."""
        files.write_bytes(self._folder / f"{start}.json", _NOTED.dump_json(tuple(clients)))

    def get(self, start: str | None) -> tuple[Contribution, ...]:
        """Return who took part in the round that began at `start`; nobody if there was none."""
        path = self._folder / f"{start}.json"
        if start is None or not path.exists():
            return ()
        try:
            return _NOTED.validate_json(path.read_bytes())
        except ValidationError as error:
            raise RecordError(f"{path}: damaged; restore it from a backup") from error

    def drop(self) -> None:
        """Forget all of them."""
        try:
            for path in self._folder.glob("*.json"):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete in {self._folder}: {error.strerror}") from error


_NOTED: TypeAdapter[tuple[Contribution, ...]] = TypeAdapter(tuple[Contribution, ...])
