"""The server's memory of a Flower federation: a home folder, with the log of its rounds beside.

rounds.jsonl     who contributed to which model with which weight and digest; never an update
training.json    the training that is under way
models/          the last models, by digest            noted/   the rounds of an erasure in progress
and what an erasure keeps there: journal, ledger, registry, keys, plans, receipts (erasure/home.py)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from pydantic import ValidationError
from torch import Tensor, nn

from secede import files
from secede import state as states
from secede.erasure.canonical import canonical
from secede.erasure.fields import Count, Document, stamp
from secede.erasure.hold import locked
from secede.erasure.home import Home
from secede.erasure.journal import Journal
from secede.erasure.keys import check_name, is_name
from secede.erasure.lineage import Lineage
from secede.erasure.registry import Model
from secede.errors import GuardError, RecordError, StateError, StorageError
from secede.flower import arrays
from secede.flower.grids import Tell, say
from secede.flower.log import Contribution, Log, Notes, Round
from secede.flower.nodes import Node, check_names
from secede.flower.waiting import until
from secede.state import State


class Training(Document):
    """A training that is under way, or was the last."""

    number: Count
    rounds: Count
    finished: bool = False


@dataclass(frozen=True)
class Resumed:
    """Where a training that was cut short goes on: rounds that are done, and their model."""

    rounds: int
    arrays: ArrayRecord


class Store:
    """A federation's folder at the server. `load_model` gives the network, freshly initialised."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        load_model: Callable[[], nn.Module],
        *,
        name: str | None = None,
        classes: int | None = None,
        secure_aggregation: bool = False,
        tell: Tell = say,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.path, self.load_model = Path(path).absolute(), load_model
        given = self.path.name if is_name(self.path.name) else "federation"
        self.name = check_name(name or given, "federation")
        self.secure_aggregation, self.tell, self.clock = secure_aggregation, tell, clock
        self.classes = classes  # that the network tells apart; None: its last layer's outputs
        self.home, self.log = Home(self.path), Log(self.path / "rounds.jsonl")
        self.notes = Notes(self.path / "noted")

    @cached_property
    def like(self) -> dict[str, Tensor]:
        """What the users' records hold: names, shapes, dtypes."""
        return arrays.schema(self.load_model())

    def last(self) -> Round | None:
        """Return the last completed round."""
        return next(iter(self.log.rounds()[::-1]), None)

    def model(self) -> dict[str, Tensor] | None:
        """Return the last model, None before the first round."""
        last = self.last()
        if last is None:
            return None
        state, _ = states.load(self.home.model(last.model))
        if states.digest(state) != last.model:
            raise StateError(f"{self.home.model(last.model)}: not the model that was recorded")
        return {name: state[name] for name in self.like}

    def clients(self) -> tuple[Node, ...]:
        """Return all who ever contributed, in the order in which they came; ids are the last."""
        found = dict[str, Node]()
        for completed in self.log.rounds():
            for each in completed.clients:
                node = each.identity()
                if each.client in found:
                    check_names((found[each.client], node))
                found[each.client] = node
        return tuple(found.values())

    def erased(self) -> frozenset[str]:
        """Return the names of those who were erased."""
        if not self.home.registry.exists():
            return frozenset()
        with Lineage(self.home.registry, read_only=True) as registry:
            return frozenset(registry.erased())

    def served(self) -> Model | None:
        """Return the registered model that serves, if there is one."""
        if not self.home.registry.exists():
            return None
        with Lineage(self.home.registry, read_only=True) as registry:
            return registry.serving(self.name)

    def serving(self) -> str | None:
        """Return the digest of the registered model that serves, if there is one."""
        model = self.served()
        return None if model is None else model.digest

    def check_start(self, digest: str) -> None:
        """Raise if a training would start from a model that somebody was erased from."""
        if not self.home.registry.exists():
            return
        with Lineage(self.home.registry, read_only=True) as registry:
            if any(m.digest == digest and m.status == "retired" for m in registry.models()):
                raise GuardError(
                    f"the training starts from model {digest[:12]}…, which is retired because a "
                    "client was erased from it: start from the one that serves"
                )

    # A training

    def begin(self, rounds: int, *, resume: bool = True) -> Resumed | None:
        """Note that a training of so many rounds begins; return where to go on if one was cut."""
        found = self.resume() if resume else None
        known = self._training()
        number = known.number if found and known else (known.number + 1 if known else 0)
        self._write(Training(number=number, rounds=rounds))
        return found

    def resume(self) -> Resumed | None:
        """Return where the training that was cut short goes on; None if there is none."""
        known = self._training()
        if known is None or known.finished:
            return None
        done = [r for r in self.log.rounds() if r.training == known.number and not r.erased]
        state = self.model()
        if not done or state is None:
            return None
        return Resumed(len(done), arrays.to_record(state))

    def finish(self) -> None:
        """Note that the training has come to its end."""
        known = self._training()
        if known is not None:
            self._write(known.model_copy(update={"finished": True}))

    def keep(
        self,
        state: State,
        *,
        run: str,
        strategy: str,
        start: str,
        clients: Sequence[Contribution],
        config: Mapping[str, Any],
        erased: str | None = None,
        number: int | None = None,
    ) -> Round:
        """Write a completed round down: first the model's file, then the line that makes it one.

        `number` is for an erasure, which may have taken several rounds.
        """
        last, known = self.last(), self._training()
        digest = states.digest(state)
        completed = Round(
            number=number or (last.number + 1 if last else 1),
            training=known.number if known else 0,
            run=run,
            strategy=strategy,
            start=start,
            model=digest,
            clients=tuple(clients),
            config=dict(config),
            erased=erased,
            at=stamp(self.clock()),
        )
        if not self.home.model(digest).exists():
            states.save(state, self.home.model(digest))
        self.log.append(completed)
        self._sweep({digest, *([last.model] if last and not erased else [])})
        return completed

    @contextmanager
    def held(self, seconds: float = 90) -> Iterator[None]:
        """Hold the folder, waiting for one who works in it for at most so long."""
        self.path.mkdir(parents=True, exist_ok=True)
        with Journal(self.home.journal):  # it must be there for the lock to name who has it
            pass
        with ExitStack() as stack:
            for left in until(seconds, 1.0):
                try:
                    stack.enter_context(locked(self.path, self.home.journal))
                    break
                except RecordError as error:
                    if left <= 0:
                        raise
                    self.tell(f"waiting at most {left:.0f} seconds: {error}")
            yield

    def _training(self) -> Training | None:
        path = self.path / "training.json"
        try:
            return Training.model_validate_json(path.read_bytes()) if path.exists() else None
        except ValidationError as error:
            raise RecordError(f"{path}: damaged; restore it from a backup") from error

    def _write(self, training: Training) -> None:
        content = canonical(training.model_dump(mode="json")) + b"\n"
        files.write_bytes(self.path / "training.json", content)

    def _sweep(self, stays: set[str]) -> None:
        """Delete models of former rounds, unless the registry looks after them."""
        if self.home.registry.exists():
            with Lineage(self.home.registry, read_only=True) as registry:
                stays |= {m.digest for m in registry.models() if m.status != "retired"}
        models = (self.path / "models").glob("*.safetensors")
        self._remove(*(path for path in models if path.stem not in stays))

    def _remove(self, *paths: Path) -> None:
        try:
            for path in paths:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete in {self.path}: {error.strerror}") from error
