"""The log of completed rounds, with what an erasure needs to know of each; never an update.

Each round is a line of JSON, appended and synced after the model's file. A round whose line a kill
cut off counts as not completed.

Another log has the sums of updates that were opened: of which clients, and from which model. Two
sums from one model that differ by one client reveal that client's update. So each sum is recorded
before it is unmasked, and another one from the same model must be of the same clients.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from secede import files
from secede.erasure import (
    CanaryCommitment,
    Count,
    Digest,
    Document,
    Name,
    Timestamp,
    describe_errors,
    to_canonical,
)
from secede.errors import GuardError, RecordError, SilentError, StorageError
from secede.flower.protocol.nodes import Node, check_names
from secede.text import short_digest

_BYTES = "base64:"  # begins a value that was bytes
_TAIL = 1 << 16  # bytes at the log's end that are read first


class Contribution(Document):
    """One client's part in one mean: its weight, and its update's digest and distance."""

    client: Name
    node: Annotated[str, Field(pattern=r"^[0-9]{1,20}$")]  # ids do not fit into JSON's numbers
    key: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    digest: Digest | None = None  # None: its client reported none, under secure aggregation
    # L2 distance from the mean over trainable parameters: bounds how far the others' mean lies.
    distance: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    canaries: CanaryCommitment | None = None  # in the round that brought it

    @classmethod
    def of(
        cls,
        node: Node,
        weight: float,
        digest: str | None,
        distance: float | None = None,
        canaries: CanaryCommitment | None = None,
    ) -> Contribution:
        """Return the contribution of a node's client."""
        return cls(
            client=node.name,
            node=str(node.node),
            key=node.key,
            weight=weight,
            digest=digest,
            distance=distance,
            canaries=canaries,
        )

    def to_node(self) -> Node:
        """Return the client's node."""
        return Node(name=self.client, node=int(self.node), key=self.key)


class Round(Document):
    """A completed round of training, or the last round of an erasure."""

    version: Literal[1] = 1
    number: Count  # counted over all trainings of this federation
    training: Count  # its number
    run: str
    strategy: str
    start: Digest  # of the model that the clients trained from
    model: Digest
    clients: tuple[Contribution, ...]
    config: dict[str, Any] = Field(default_factory=dict)  # that the clients were given
    server_round: Count | None = None  # its number within the training, as clients were given it
    erased: Name | None = None  # a client whose erasure ended with this model
    secure: bool = False  # under SecAgg+: digests are what clients reported
    at: Timestamp

    def share(self, client: str) -> float:
        """Return a client's share of this mean; 0 if it took no part."""
        total = sum(c.weight for c in self.clients)
        return sum(c.weight for c in self.clients if c.client == client) / (total or 1)


class OpenedSum(Document):
    """One sum of updates."""

    start: Digest  # of the model that the clients trained from
    clients: tuple[Name, ...]


DocumentT = TypeVar("DocumentT", bound=Document)


class _Lines(Generic[DocumentT]):
    """A file with a document on each line. A line that a kill cut off does not count."""

    def __init__(self, path: Path, kind: type[DocumentT]) -> None:
        self._path, self._kind = path, kind

    def append(self, document: DocumentT) -> None:
        """Add a document; a line that a kill cut off is removed first."""
        line = to_canonical(document.model_dump(mode="json"))
        if not self._path.exists():
            files.write_bytes(self._path, line + b"\n")  # which syncs the folder, too
            return
        try:
            if not self._is_complete():
                os.truncate(self._path, self._path.read_bytes().rfind(b"\n") + 1)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from error
        files.append_line(self._path, line.decode())

    def _is_complete(self) -> bool:
        with self._path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            return file.read(1) in (b"", b"\n")

    def _read(self) -> Iterator[DocumentT]:
        if self._path.exists():
            *lines, _cut = self._path.read_bytes().split(b"\n")
            yield from map(self._parse, lines)

    def _parse(self, line: bytes) -> DocumentT:
        try:
            return self._kind.model_validate(json.loads(line), strict=False)
        except (ValueError, ValidationError) as error:
            fault = describe_errors(error) if isinstance(error, ValidationError) else error
            raise RecordError(
                f"{self._path}: damaged ({fault}); restore it from a backup"
            ) from error


class OpenedSums(_Lines[OpenedSum]):
    """The file opened.jsonl of a home, with a line for each sum."""

    def __init__(self, home: Path) -> None:
        super().__init__(home / "opened.jsonl", OpenedSum)

    def allowed_clients(self, start: str, online: Collection[str]) -> frozenset[str]:
        """Return which clients may take part; SilentError if one that must is not online."""
        before = self.opened_with(start)
        if before is None:
            return frozenset(online)
        if missing := sorted(before - {*online}):
            raise SilentError(
                f"a sum from model {short_digest(start)} was opened with "
                f"{', '.join(sorted(before))}, and another without {', '.join(missing)} would "
                "reveal single updates: start again when all of them are online, or go on from "
                "another model"
            )
        return before

    def add(self, start: str, clients: Collection[str]) -> None:
        """Record that a sum is opened now; GuardError after a sum of fewer clients."""
        before = self.opened_with(start)
        if self.allowed_clients(start, clients) != {*clients}:
            raise GuardError(
                f"a sum from model {short_digest(start)} was opened with fewer clients"
            )
        if before is None:
            self.append(OpenedSum(start=start, clients=tuple(sorted(clients))))

    def opened_with(self, start: str) -> frozenset[str] | None:
        """Return the clients of the sum that was opened from this model; None if none was."""
        every = (frozenset(opened.clients) for opened in self._read() if opened.start == start)
        return next(every, None)


class RoundLog(_Lines[Round]):
    """The file rounds.jsonl."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Round)

    def rounds(self) -> list[Round]:
        """Return all completed rounds, the oldest first."""
        return list(self._read())

    def clients(self) -> tuple[Node, ...]:
        """Return all clients that ever contributed, in order of appearance, with their last ids."""
        by_name, every = dict[str, Node](), dict[tuple[str, str], Node]()
        for completed in self.rounds():
            for contribution in completed.clients:
                node = contribution.to_node()
                by_name[contribution.client] = every[node.name, node.identity] = node
        check_names(every.values())
        return tuple(by_name.values())

    def canaries(self) -> dict[str, CanaryCommitment]:
        """Return the commitment of each client that planted canaries, by name: its first one."""
        found = dict[str, CanaryCommitment]()
        for contribution in (c for completed in self.rounds() for c in completed.clients):
            if contribution.canaries is not None:
                found.setdefault(contribution.client, contribution.canaries)
        return found

    def contributors(self) -> dict[str, frozenset[str]]:
        """Return the clients that each model was trained by, in its round or in any before it."""
        rounds = self.rounds()
        by_model, by_place = dict[str, frozenset[str]](), list[frozenset[str]]()
        for completed, origin in zip(rounds, _origins(rounds), strict=True):
            earlier = frozenset[str]() if origin is None else by_place[origin]
            by_place.append(
                (earlier - {completed.erased or ""}) | {c.client for c in completed.clients}
            )
            by_model[completed.model] = by_place[-1]
        return by_model

    def lineage(self) -> list[Round]:
        """Return the rounds and erasures that led to the last model, the oldest first.

        Trainings that it did not go on from are not among them.
        """
        rounds = self.rounds()
        origins, newest_first = _origins(rounds), list[Round]()
        place = len(rounds) - 1 if rounds else None
        while place is not None:
            newest_first.append(rounds[place])
            place = origins[place]
        return newest_first[::-1]

    def has_model(self, model: str) -> bool:
        """Return whether a round or an erasure ended with this model."""
        return any(completed.model == model for completed in self.rounds())

    def last(self) -> Round | None:
        """Return the last completed round, without reading the others."""
        if not self._path.exists():
            return None
        tail, size = b"", _TAIL
        with self._path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            while tail.count(b"\n") < 2 and len(tail) < end:  # a complete line needs the one before
                file.seek(max(0, end - size))
                tail, size = file.read(size), 2 * size
        lines = tail.split(b"\n")[:-1]
        return self._parse(lines[-1]) if lines else None


def _origins(rounds: Sequence[Round]) -> list[int | None]:
    """Return for each round the place of the round that it went on from; None: it began anew."""
    origins, places = list[int | None](), dict[str, int]()
    for place, completed in enumerate(rounds):
        origin = place - 1 if place else None
        if not completed.erased:  # an erasure starts from the model before it
            # A training's first round may begin anew. The start of a later one may be a model that
            # the user changed.
            same = origin is not None and rounds[origin].training == completed.training
            origin = places.get(completed.start, origin if same else None)
        origins.append(origin)
        places[completed.model] = place
    return origins


def config_to_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that clients were given, as JSON, without the round's number."""
    return {
        name: _BYTES + base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in config.items()
        if name != "server-round"
    }


def config_from_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that `config_to_json` wrote."""
    return {
        name: base64.b64decode(value.removeprefix(_BYTES))
        if isinstance(value, str) and value.startswith(_BYTES)
        else value
        for name, value in values.items()
    }


class PendingContributions:
    """The contributions to the rounds of an erasure, until its model is put into service."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, start: str, clients: Sequence[Contribution]) -> None:
        """Keep the contributions to the round that began at `start`."""
        files.write_bytes(self._folder / f"{start}.json", _CONTRIBUTIONS.dump_json(tuple(clients)))

    def get(self, start: str | None) -> tuple[Contribution, ...]:
        """Return the contributions to the round that began at `start`; empty if there was none."""
        path = self._folder / f"{start}.json"
        if start is None or not path.exists():
            return ()
        try:
            return _CONTRIBUTIONS.validate_json(path.read_bytes())
        except ValidationError as error:
            raise RecordError(f"{path}: damaged; restore it from a backup") from error

    def drop(self) -> None:
        """Delete all contributions."""
        try:
            for path in self._folder.glob("*.json"):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete in {self._folder}: {error.strerror}") from error


_CONTRIBUTIONS: TypeAdapter[tuple[Contribution, ...]] = TypeAdapter(tuple[Contribution, ...])
