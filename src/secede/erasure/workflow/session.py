"""The desk that an erasure is worked at: every transition is written down here, in one order.

First the state's file, then one transaction of the journal, then the ledger's rows. What a kill
cut off after the journal is caught up with on the next start: rows follow from the journal alone,
and each is appended once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from torch import Tensor

from secede import state as states
from secede.erasure.backend import FederationBackend
from secede.erasure.defences.fingerprints import ReplayDetector
from secede.erasure.documents.ledger_rows import KINDS, DeliveredBody, Row
from secede.erasure.documents.plan import Plan, Step
from secede.erasure.documents.request import Request
from secede.erasure.receipts import contribution
from secede.erasure.signing.keys import PrivateKey
from secede.erasure.storage import progress as courses
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Holder, Transition
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.locks import LEASE_SECONDS
from secede.erasure.storage.model_registry import Model, ModelRegistry
from secede.erasure.storage.progress import Progress
from secede.erasure.storage.state_files import StateFiles
from secede.erasure.types import Document
from secede.erasure.workflow import consistency
from secede.errors import ConfigError, RecordError, StateError, StorageError
from secede.federation.robust import by_name
from secede.state import State
from secede.text import fill_line
from secede.unlearning.method import Server

logger = logging.getLogger(__name__)

NAMES = 4096  # that fit into one row of the ledger
NOT_FADED = ("unfaded", "cleared")  # all of it stayed, or all but what nobody reaches


@dataclass(frozen=True, kw_only=True)
class ErasureSession:
    """One request with everything that its erasure needs at hand."""

    home: Home
    ground: FederationBackend
    journal: Journal
    ledger: Ledger
    registry: ModelRegistry
    key: PrivateKey
    holder: Holder
    clock: Callable[[], datetime]
    number: int

    @cached_property
    def request(self) -> Request:
        """What the leaver signed."""
        return self.journal.request(self.number)

    @cached_property
    def vault(self) -> StateFiles:
        """Where the erasure's states lie."""
        return StateFiles(self.home.work(self.number))

    @cached_property
    def run(self) -> str:
        """The run whose models are looked after."""
        return self.home.federation.run

    @property
    def course(self) -> Progress:
        """How far it has come."""
        return Progress(
            self.journal.entry(self.number), tuple(self.journal.transitions(self.number))
        )

    @property
    def plan(self) -> Plan:
        """What is followed."""
        return self.home.plan(self.course.plan)

    @property
    def step(self) -> Step:
        """The rung that is taken."""
        return self.plan.ladder[self.course.rung]

    def serving(self) -> Model:
        """Return the registered model that serves."""
        found = self.registry.serving(self.run)
        if found is None:
            raise RecordError(f"run {self.run!r} has no serving model in {self.home.registry}")
        return found

    def model(self, digest: str) -> dict[str, Tensor]:
        """Return a model that was put into service, where the engine takes it.

        StorageError if its file is lost or damaged: no client and no rung is to blame for that.
        """
        path = self.home.model(digest)
        try:
            state, _ = states.load(path)
        except StateError as error:
            raise StorageError(f"{error}: restore the file from a backup") from error
        if states.digest(state) != digest:
            raise StorageError(
                f"{path}: not the model that was registered; restore the file from a backup"
            )
        return states.to(state, self.ground.device)

    def kept(self, name: str) -> tuple[State, State]:
        """Return a state of this erasure and its method's memory, where the engine takes them."""
        state, memory = self.vault.get(name)
        return states.to(state, self.ground.device), states.to(memory, self.ground.device)

    def server(self, plan: Plan) -> Server:
        """Return what a method finds."""
        state = self.model(plan.model)
        found = self.ground.server(plan.client, plan.retained, state, plan.leaver_timeout)
        return replace(found, mean=by_name(plan.mean))

    @cached_property
    def shared(self) -> dict[str, str]:
        """Further names of shared parameters, each with the one that stands for it."""
        return states.aliases(self.ground.fresh_model(0))

    @cached_property
    def movable(self) -> frozenset[str]:
        """The entries of a state that training moves."""
        parameters = self.ground.fresh_model(0).named_parameters()
        return frozenset(name for name, value in parameters if value.requires_grad)

    def returning(self, plan: Plan) -> ReplayDetector:
        """Return what old updates are known again by, those of the plan's leaver among them."""
        last, seen = self.ground.last(plan.client), self.ground.seen(plan.client)
        return ReplayDetector(self.home.path, self.movable, last, seen)

    def numbers(self, names: tuple[str, ...]) -> list[int]:
        """Return clients' numbers in the engine."""
        unknown = sorted(set(names) - self.ground.clients.keys())
        if unknown:
            raise ConfigError(f"client {unknown[0]!r} is registered but not in the federation")
        return [self.ground.clients[name] for name in names]

    def hold(self) -> None:
        """Renew the lease before what cannot be undone; RecordError if another had it since."""
        self.journal.renew(self.number, self.holder, self.clock(), LEASE_SECONDS)

    def write(self, body: Document) -> Row:
        """Append a row to the ledger unless it is there, stamped with the time that it is now."""
        self.hold()
        row = self.ledger.append_once(KINDS[type(body)], body, self.clock())
        self.note_head()
        return row

    def note_head(self) -> None:
        """Keep in the journal how far the ledger goes."""
        head = self.ledger.head()
        if self.journal.ledger_head() != head:
            self.journal.save_ledger_head(head)

    def move(self, state: str, details: Mapping[str, Any]) -> None:
        """Take the request to its next state: journal, lease, ledger."""
        now = self.clock()
        added = self.journal.append(
            self.number,
            state,
            {**details, **self._circumstances(state)},
            now,
            holder=self.holder,
            allowed=courses.ALLOWED,
        )
        if state not in courses.TERMINAL:
            self.journal.renew(self.number, self.holder, now, LEASE_SECONDS)
        self._copy(self.course, added)
        retraining = state == courses.POST_TRAINING and self.step.rung == "retraining"
        logger.info(_words(added, "retraining" if retraining else state.replace("-", " ")))

    def catch_up(self) -> None:
        """Append what the ledger lacks of the journal, as a kill may have left it."""
        course = self.course
        self.enter()
        for transition in course.way:
            self._copy(course, transition)

    def enter(self) -> None:
        """Append that the request was accepted, and until when it was put off, once."""
        entry = self.course.entry
        for body in consistency.accepted(entry, self.request):
            self.ledger.append_once(KINDS[type(body)], body, entry.received)

    def _circumstances(self, state: str) -> dict[str, Any]:
        """Return what the receipt will say about a transition besides its own details."""
        found = dict[str, Any]()
        if state in courses.COMPUTED:
            found["software"] = self.ground.software().model_dump(mode="json")
        if state == courses.VERIFIED:
            client = self.plan.client
            trained = self.ground.scope(client)
            scope = contribution.scope(self.home, self.journal, self.registry, trained, client)
            found |= {"scope": scope.model_dump(mode="json"), "training": self.ground.training()}
        return found

    def _copy(self, course: Progress, transition: Transition) -> None:
        for body in self._rows(course, transition):
            self.ledger.append_once(KINDS[type(body)], body, transition.at)
        self.note_head()

    def _rows(self, course: Progress, transition: Transition) -> Iterator[Document]:
        """Yield what the ledger holds of a transition; it follows from the journal alone."""
        details = transition.details
        if transition.state == courses.PLANNED:
            yield self.home.plan(details["plan"]).body(0)
        if transition.state == courses.ESCALATED and details["next"] is not None:
            yield self.home.plan(details["plan"]).body(details["next"])
        if transition.state == courses.POST_TRAINING and "sent" not in details:
            names = self.home.plan(details["plan"]).retained
            for start in range(0, len(names), NAMES):
                part = names[start : start + NAMES]
                yield DeliveredBody(model=details["model"], clients=part)
        for told in details.get("sent", ()):
            yield from self._delivered(course, transition, told)
        yield consistency.transition_body(course.entry.digest, transition)

    def _delivered(
        self, course: Progress, transition: Transition, told: Mapping[str, Any]
    ) -> Iterator[DeliveredBody]:
        """Yield who was sent a state on the way to a transition: the leaver, those present."""
        plan = self.home.plan(transition.details["plan"])
        names: tuple[str, ...] = (plan.client,) if "leaver" in told["to"] else ()
        if "retained" in told["to"]:
            names += courses.present(plan.retained, course.way[: transition.number])
        for start in range(0, len(names), NAMES):
            yield DeliveredBody(model=told["model"], clients=names[start : start + NAMES])


def _words(transition: Transition, said: str) -> str:
    """Say what happened in a line that begins with `said`."""
    details = transition.details
    if transition.state == courses.POST_TRAINING:
        accuracy = details["scalars"].get("accuracy")
        told = "" if accuracy is None else f": retained clients answer {accuracy:.1%} right"
        faded = details["scalars"].get("faded")
        told += f", {faded:.0%} of the layers' weights, squared, faded" if faded else ""
        if stay := [name for key in NOT_FADED for name in details.get(key, ())]:
            count = sum(details["scalars"].get(key, 0) for key in NOT_FADED)
            told += fill_line(", these could not fade: ", stay, count)
        return f"{said} round {details['round']}{told}"
    if transition.state in (courses.REFUSED, courses.ROLLED_BACK):
        return said  # whoever works on it tells the outcome, and why
    more = [str(details[key]) for key in ("method", "outcome", "reason") if details.get(key)]
    return f"{said}: {', '.join(more)}" if more else said
