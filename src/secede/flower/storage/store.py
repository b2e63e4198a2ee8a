"""The server's store of a Flower federation: an erasure home, and the log of all rounds.

rounds.jsonl     who contributed to which model, with weight and digest; never an update
opened.jsonl     the clients of each sum that was opened, under secure aggregation
training.json    the training in progress              identity.json   the id that clients see
models/          the last models, by digest            pending/   rounds of an erasure in progress
An erasure keeps journal, ledger, registry, keys, plans and receipts there (erasure/storage/home.py)
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from secede import files, logs
from secede import state as states
from secede.erasure import (
    Document,
    Home,
    HomeLock,
    Journal,
    Model,
    ModelRegistry,
    check_name,
    format_time,
    is_name,
    load_document,
    lock_home,
    parse_json,
    read_bounded,
    save_document,
)
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
from secede.flower.storage.training_state import StartPoint, TrainingState
from secede.state import State
from secede.text import short_digest

logger = logging.getLogger(__name__)

_LIMIT = 1 << 20  # bytes of a recipe


class Identity(Document):
    """The id by which clients tell homes apart."""

    home: Annotated[str, Field(pattern=r"^([0-9a-f]{32}|[0-9a-f]{64})$")]


class Store:
    """A federation's folder at the server. `load_model` returns a freshly initialised network."""

    engine = "flower"  # what runs the rounds, as receipts name it
    packages: tuple[str, ...] = ("flwr",)  # whose versions receipts list
    weighted_by = ""  # what clients call their weights, unless it is the strategy's key

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
        self.name = check_name(name or self._default_name(), "federation")
        self.clock = clock
        logs.print_unless_handled()
        self.classes = classes  # of the network; None: as many as its last layer has outputs
        self.pending = PendingContributions(self.path / "pending")

    def _check_engine(self) -> None:
        """Raise if another engine made this home: its model would be replaced."""
        path = self.path / "recipe.json"
        if not path.exists():
            return
        try:
            engine = parse_json(read_bounded(path, _LIMIT), _LIMIT).get("engine")
        except TrustError as error:
            raise RecordError(f"{path}: damaged; restore it from a backup") from error
        if engine != self.engine:
            # The simulator's recipe names no engine.
            owner = "of `secede federation init`" if engine is None else f"on {engine}"
            raise ConfigError(
                f"{self.path} is the home of a federation {owner}, not of one on {self.engine}: "
                "choose another folder"
            )

    def _default_name(self) -> str:
        """Return the name of the home's federation, else of the folder that holds it."""
        if (self.path / "federation.json").exists():
            return self.home.federation.name
        names = (self.path.name, self.path.parent.name)
        return next((name for name in names if name != "home" and is_name(name)), "federation")

    @cached_property
    def identity(self) -> str:
        """The home's id for clients, that of its server's key, so that receipts prove whose it is.

        It is written down once, and survives a move of the folder.
        """
        return load_document(Identity, self._make_identity(), _LIMIT).home

    def _make_identity(self) -> Path:
        path = self.path / "identity.json"
        if not path.exists():
            with files.private():
                self.home.make_server_key()
                save_document(path, Identity(home=self.home.server_key().public_key.keyid))
        return path

    @cached_property
    def template(self) -> dict[str, Tensor]:
        """Names, shapes and dtypes of the states in users' records."""
        return arrays.template_of(self.load_model())

    @cached_property
    def trainable_names(self) -> frozenset[str]:
        """The names of the network's parameters that are not frozen."""
        parameters = self.load_model().named_parameters()
        return frozenset(n for n, p in parameters if p.requires_grad and n in self.template)

    def distance(self, update: State, model: State) -> float | None:
        """Return an update's L2 distance from a model; None if it is not finite."""
        names = self.trainable_names
        if any(name not in update or name not in model for name in names):
            return None
        try:
            distance = states.distance(*({n: state[n] for n in names} for state in (update, model)))
        except (OverflowError, StateError):
            return None
        return distance if math.isfinite(distance) else None

    def last_round(self) -> Round | None:
        """Return the last completed round."""
        return self.log.last()

    def last_model(self) -> dict[str, Tensor] | None:
        """Return the last round's model, None before the first round."""
        last = self.last_round()
        if last is None:
            return None
        state, _ = states.load(self.home.model_path(last.model))
        if states.digest(state) != last.model:
            raise StateError(f"{self.home.model_path(last.model)}: not the model that was recorded")
        return {name: state[name] for name in self.template}

    def clients(self) -> tuple[Node, ...]:
        """Return all clients that ever contributed, in order of appearance, with their last ids."""
        return self.log.clients()

    def update_digests(self) -> dict[str, str]:
        """Return the digest of each client's last recorded update, by the client's identity."""
        return {
            contribution.to_node().identity: contribution.digest
            for completed in self.log.rounds()
            for contribution in completed.clients
            if contribution.digest is not None
        }

    def erased_clients(self) -> frozenset[str]:
        """Return the names of all erased clients."""
        if not self.home.registry.exists():
            return frozenset()
        with ModelRegistry(self.home.registry, read_only=True) as registry:
            return frozenset(registry.erased_clients())

    def serving_model(self) -> Model | None:
        """Return the registered model that serves, if there is one."""
        if not self.home.registry.exists():
            return None
        with ModelRegistry(self.home.registry, read_only=True) as registry:
            return registry.serving(self.name)

    def serving_digest(self) -> str | None:
        """Return the digest of the registered model that serves, if there is one."""
        model = self.serving_model()
        return None if model is None else model.digest

    def check_start(self, digest: str) -> None:
        """Raise if a training would start from a model that a client was erased from."""
        if not self.home.registry.exists():
            return
        with ModelRegistry(self.home.registry, read_only=True) as registry:
            retired = any(m.digest == digest and m.status == "retired" for m in registry.models())
            erased, last = frozenset(registry.erased_clients()), self.last_round()
        if not retired and erased and (last is None or last.model != digest):
            # The registry has the models that served, but not those of the rounds between.
            retired = not erased.isdisjoint(self.log.contributors().get(digest, ()))
        if retired:
            raise GuardError(
                f"the training starts from model {short_digest(digest)}, which is retired because "
                "a client was erased from it: start from the one that serves"
            )

    # A training

    def start_training(
        self, rounds: int, *, given: str | None = None, from_scratch: bool = False
    ) -> tuple[StartPoint, dict[str, Tensor] | None]:
        """Record that a training of so many rounds begins; return where, and from which model.

        `given` is the digest of the weights that it is started with; without a model it begins
        with these.
        """
        planned = self.trainings.plan_start(rounds, given=given, from_scratch=from_scratch)
        first = planned.model or given
        if first is not None:
            self.check_start(first)
        begins_as_given = planned.model is None or (planned.model == given and not planned.done)
        state = None if begins_as_given else self.last_model()
        start = self.trainings.start(rounds, given=given, from_scratch=from_scratch)
        logger.info(start.description)
        self._make_identity()  # before any client is waited for: requests name the server's key
        return start, state

    def cancel_from_scratch(self) -> bool:
        """Cancel a training from scratch that has no round yet; return whether there was one."""
        with self.lock(purpose="cancelling a training from scratch"):
            return self.trainings.cancel_from_scratch()

    def accept_unfinished(self) -> None:
        """Let the model of a training that was cut short serve, as if the training had ended."""
        with self.lock(purpose="accepting an unfinished training"):
            self.trainings.accept_unfinished()

    def record_round(
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
        """Record a completed round: first write the model's file, then append to the log.

        `number` is for an erasure, which may have taken several rounds.
        """
        last, training = self.last_round(), self.trainings.last()
        with files.private():
            digest = state_writer.save(state, self.path / "models", mode=0o600)
        completed = Round(
            number=number or (last.number + 1 if last else 1),
            training=training.number if training else 0,
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

    def lock(
        self, timeout: float = 90, *, purpose: str = "training"
    ) -> AbstractContextManager[HomeLock]:
        """Lock the folder, waiting at most `timeout` seconds for a process that works in it."""
        with files.private():
            files.make_folder(self.home.path)
        Journal(self.home.journal).close()  # an erasure refuses a home without one
        return lock_home(self.home, timeout, purpose=purpose)

    def _sweep(self, kept: set[str]) -> None:
        """Delete the models of former rounds that are neither named nor in the registry."""
        if self.home.registry.exists():
            with ModelRegistry(self.home.registry, read_only=True) as registry:
                kept |= {m.digest for m in registry.models() if m.status != "retired"}
        folder = self.path / "models"
        models = (path for path in folder.glob("*.safetensors") if path.stem not in kept)
        try:
            for path in (*models, *folder.glob(files.PARTS)):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete in {self.path}: {error.strerror}") from error
