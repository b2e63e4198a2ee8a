"""The server's memory of a Flower federation: a home folder, with the log of its rounds beside.

rounds.jsonl     who contributed to which model with which weight and digest; never an update
opened.jsonl     whose updates' sums were opened, under secure aggregation
training.json    the training that is under way        identity.json   what clients know it by
models/          the last models, by digest            noted/   the rounds of an erasure in progress
and what an erasure keeps there: journal, ledger, registry, keys, plans, receipts
(erasure/storage/home.py)
"""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from flwr.app import ArrayRecord
from pydantic import Field
from torch import Tensor, nn

from secede import files, logs
from secede import state as states
from secede.erasure.canonical_json import parse, read_file
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.json_files import load_document, save_document
from secede.erasure.storage.locks import HomeLock, lock_home
from secede.erasure.storage.model_registry import Model, ModelRegistry
from secede.erasure.types import Document, check_name, format_time, is_name
from secede.errors import (
    ConfigError,
    GuardError,
    RecordError,
    StateError,
    StorageError,
    TrustError,
)
from secede.flower.protocol import arrays
from secede.flower.protocol.nodes import Node
from secede.flower.storage import state_writer
from secede.flower.storage.round_log import Contribution, PendingContributions, Round, RoundLog
from secede.flower.storage.training_state import TrainingState
from secede.state import State
from secede.text import short_digest

logger = logging.getLogger(__name__)

_LIMIT = 1 << 20  # bytes of a recipe


class Identity(Document):
    """What clients know the folder by."""

    home: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


@dataclass(frozen=True)
class TrainingStart:
    """Where a training goes on: rounds of it that are done, and the model."""

    rounds: int
    arrays: ArrayRecord
    model: str | None = None  # its digest


class Store:
    """A federation's folder at the server. `load_model` gives the network, freshly initialised."""

    engine = "flower"  # that runs the rounds, as receipts name it
    packages: tuple[str, ...] = ("flwr",)  # whose versions they tell

    def __init__(
        self,
        path: str | os.PathLike[str],
        load_model: Callable[[], nn.Module],
        *,
        name: str | None = None,
        classes: int | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.path, self.load_model = Path(path).absolute(), load_model
        self._check_engine()
        self.home, self.log = Home(self.path), RoundLog(self.path / "rounds.jsonl")
        self.trainings = TrainingState(self.path)
        self.name = check_name(name or self._called(), "federation")
        self.clock = clock
        logs.print_unless_handled()
        self.classes = classes  # that the network tells apart; None: its last layer's outputs
        self.notes = PendingContributions(self.path / "noted")

    def _check_engine(self) -> None:
        """Raise if another engine founded this home: its model would be replaced by ours."""
        path = self.path / "recipe.json"
        if not path.exists():
            return
        try:
            engine = parse(read_file(path, _LIMIT), _LIMIT).get("engine")
        except TrustError as error:
            raise RecordError(f"{path}: damaged; restore it from a backup") from error
        if engine != self.engine:
            # The simulator's recipe names no engine.
            whose = "of `secede federation init`" if engine is None else f"on {engine}"
            raise ConfigError(
                f"{self.path} is the home of a federation {whose}, not of one on {self.engine}: "
                "take another folder"
            )

    def _called(self) -> str:
        """Return the name that the home has, else what its folder is called.

        One that is called `home` says nothing: the folder around it does.
        """
        if (self.path / "federation.json").exists():
            return self.home.federation.name
        names = (self.path.name, self.path.parent.name)
        return next((name for name in names if name != "home" and is_name(name)), "federation")

    @cached_property
    def identity(self) -> str:
        """What clients know this folder by, however it is called: drawn once, at random."""
        path = self.path / "identity.json"
        if not path.exists():
            made = Identity(home=secrets.token_hex(16))
            save_document(path, made)
        return load_document(Identity, path, _LIMIT).home

    @cached_property
    def like(self) -> dict[str, Tensor]:
        """What the users' records hold: names, shapes, dtypes."""
        return arrays.template_of(self.load_model())

    @cached_property
    def movable(self) -> frozenset[str]:
        """What training moves: the network's parameters that are not frozen."""
        parameters = self.load_model().named_parameters()
        return frozenset(n for n, p in parameters if p.requires_grad and n in self.like)

    def moved(self, update: State, model: State) -> float | None:
        """Return how far an update lies from a model; None where that is no number."""
        if any(name not in update or name not in model for name in self.movable):
            return None
        here, there = ({n: state[n] for n in self.movable} for state in (update, model))
        try:
            found = states.distance(here, there)
        except (OverflowError, StateError):
            return None
        return found if math.isfinite(found) else None

    def last(self) -> Round | None:
        """Return the last completed round."""
        return self.log.last()

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
        return self.log.clients()

    def digests(self) -> dict[str, str]:
        """Return the digest of each client's last recorded update, by who it is."""
        return {
            each.identity().identity: each.digest
            for completed in self.log.rounds()
            for each in completed.clients
            if each.digest is not None
        }

    def erased(self) -> frozenset[str]:
        """Return the names of those who were erased."""
        if not self.home.registry.exists():
            return frozenset()
        with ModelRegistry(self.home.registry, read_only=True) as registry:
            return frozenset(registry.erased_clients())

    def served(self) -> Model | None:
        """Return the registered model that serves, if there is one."""
        if not self.home.registry.exists():
            return None
        with ModelRegistry(self.home.registry, read_only=True) as registry:
            return registry.serving(self.name)

    def serving(self) -> str | None:
        """Return the digest of the registered model that serves, if there is one."""
        model = self.served()
        return None if model is None else model.digest

    def check_start(self, digest: str) -> None:
        """Raise if a training would start from a model that somebody was erased from."""
        if not self.home.registry.exists():
            return
        with ModelRegistry(self.home.registry, read_only=True) as registry:
            retired = any(m.digest == digest and m.status == "retired" for m in registry.models())
            erased, last = frozenset(registry.erased_clients()), self.last()
        if not retired and erased and (last is None or last.model != digest):
            # The registry knows what served, and not the rounds that led there.
            retired = not erased.isdisjoint(self.log.contributors().get(digest, ()))
        if retired:
            raise GuardError(
                f"the training starts from model {short_digest(digest)}, which is retired because "
                "a client was erased from it: start from the one that serves"
            )

    # A training

    def begin(
        self, rounds: int, *, given: str | None = None, from_scratch: bool = False
    ) -> TrainingStart | None:
        """Note that a training of so many rounds begins; return where, None: with what is given.

        `given` is the digest of the weights that it is started with.
        """
        found = self.trainings.plan_start(rounds, given=given, from_scratch=from_scratch)
        begin = found.model or given
        if begin is not None:
            self.check_start(begin)
        here = found.model is None or (found.model == given and not found.done)
        state = None if here else self.model()
        found = self.trainings.start(rounds, given=given, from_scratch=from_scratch)
        logger.info(found.words)
        return (
            None
            if state is None
            else TrainingStart(found.done, arrays.to_record(state), found.model)
        )

    def resume(self) -> TrainingStart | None:
        """Return where the training that was cut short goes on; None if there is none."""
        cut, state = self.trainings.unfinished(), self.model()
        return (
            None if cut is None or state is None else TrainingStart(cut[1], arrays.to_record(state))
        )

    def finish(self) -> None:
        """Note that the training has come to its end."""
        self.trainings.finish()

    def go_on(self) -> bool:
        """Take back a wish for a training from scratch that no round has followed, if any."""
        with self.held(purpose="taking back a training from scratch"):
            return self.trainings.go_on()

    def take_as_it_is(self) -> None:
        """Let the model of a training that was cut short serve, as if that had been all of it."""
        with self.held(purpose="taking a training as it is"):
            self.trainings.take_as_it_is()

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
        server_round: int | None = None,
        secure: bool = False,
    ) -> Round:
        """Write a completed round down: first the model's file, then the line that makes it one.

        `number` is for an erasure, which may have taken several rounds.
        """
        last, known = self.last(), self.trainings.last()
        with files.private():
            digest = state_writer.save(state, self.path / "models", mode=0o600)
        completed = Round(
            number=number or (last.number + 1 if last else 1),
            training=known.number if known else 0,
            run=run,
            strategy=strategy,
            start=start,
            model=digest,
            clients=tuple(clients),
            config=dict(config),
            server_round=server_round,
            erased=erased,
            secure=secure,
            at=format_time(self.clock()),
        )
        self.log.append(completed)
        self._sweep({digest, *([last.model] if last and not erased else [])})
        return completed

    def held(
        self, timeout: float = 90, *, purpose: str = "training"
    ) -> AbstractContextManager[HomeLock]:
        """Lock the folder, waiting at most `timeout` seconds for who works in it."""
        files.make_folder(self.home.path)
        Journal(self.home.journal).close()  # an erasure refuses a home without one
        return lock_home(self.home, timeout, purpose=purpose)

    def _sweep(self, stays: set[str]) -> None:
        """Delete models of former rounds, unless the registry looks after them."""
        if self.home.registry.exists():
            with ModelRegistry(self.home.registry, read_only=True) as registry:
                stays |= {m.digest for m in registry.models() if m.status != "retired"}
        folder = self.path / "models"
        models = (path for path in folder.glob("*.safetensors") if path.stem not in stays)
        self._remove(*models, *folder.glob(files.PARTS))

    def _remove(self, *paths: Path) -> None:
        try:
            for path in paths:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete in {self.path}: {error.strerror}") from error
