"""The session of an erasure: every transition is written here, in one order.

First the state's file, then one transaction of the journal, then the ledger's rows. What a kill
cut off after the journal is completed on the next start: rows follow from the journal alone, and
each is appended once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from torch import Tensor

from secede import files
from secede import state as states
from secede.erasure.backend import FederationBackend
from secede.erasure.defences.fingerprints import Fingerprints, ReplayDetector
from secede.erasure.documents import MAX_NAMES, DeliveredBody, Head, Plan, Request, Row, Step
from secede.erasure.planning.options import method_of
from secede.erasure.signing.keys import SERVER, PrivateKey
from secede.erasure.storage import (
    ALLOWED,
    LEASE_SECONDS,
    LEAVER,
    RETAINED,
    TERMINAL,
    CanariesDetails,
    ClosingDetails,
    EscalationDetails,
    Holder,
    Home,
    HomeLock,
    Journal,
    Ledger,
    ModelRegistry,
    PlanDetails,
    Progress,
    PromotionDetails,
    RoundDetails,
    Sent,
    StartDetails,
    StateFiles,
    Transition,
    TransitionDetails,
    VerificationDetails,
    lease_request,
    lock_home,
    read_transition,
)
from secede.erasure.types import Document, format_time, parse_time
from secede.erasure.workflow import consistency
from secede.errors import ConfigError, StateError, StorageError
from secede.federation.engine import Mean
from secede.federation.robust import by_name
from secede.state import State
from secede.text import fill_line
from secede.unlearning import Method, Server

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ErasureSession:
    """One request with everything that its erasure needs at hand.

    Progress and plan stay in memory until the next transition. The journal checks in each write
    that this process still holds the lease, so nobody else can have added one.
    """

    home: Home
    backend: FederationBackend
    journal: Journal
    ledger: Ledger
    registry: ModelRegistry
    key: PrivateKey
    holder: Holder
    clock: Callable[[], datetime]
    number: int
    accepted_loss: str = ""  # why a person accepts that retraining loses accuracy
    _progress: Progress | None = field(default=None, init=False)
    _saved_head: Head | None = field(default=None, init=False)
    _plans: dict[str, Plan] = field(default_factory=dict, init=False)

    @cached_property
    def request(self) -> Request:
        """What the leaver signed."""
        return self.journal.request(self.number)

    @cached_property
    def state_files(self) -> StateFiles:
        """The states of this erasure."""
        return StateFiles(self.home.work_folder(self.number))

    @cached_property
    def run(self) -> str:
        """The run whose models the registry looks after."""
        return self.home.federation.run

    @property
    def progress(self) -> Progress:
        """How far the erasure has come."""
        if self._progress is None:
            self._progress = Progress.read(self.journal, self.journal.entry(self.number))
        return self._progress

    @property
    def plan(self) -> Plan:
        """The plan that is followed."""
        return self.plan_of(self.progress.plan)

    def plan_of(self, digest: str) -> Plan:
        """Return a plan of this request by its digest."""
        if digest not in self._plans:
            self._plans[digest] = self.home.load_plan(digest)
        return self._plans[digest]

    @property
    def step(self) -> Step:
        """The rung of the plan that is taken."""
        return self.plan.ladder[self.progress.rung]

    @property
    def method(self) -> Method:
        """The method of that rung, with the parameters of the plan."""
        return method_of(self.step)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """The fingerprints of registered models."""
        return Fingerprints(self.home.sketches("model"))

    def load_model(self, digest: str) -> dict[str, Tensor]:
        """Return a model that was put into service, on the engine's device.

        StorageError if its file is lost or damaged: no client and no rung is to blame for that.
        """
        path = self.home.model_path(digest)
        try:
            state, _ = states.load(path)
        except StateError as error:
            raise StorageError(f"{error}: restore the file from a backup") from error
        if states.digest(state) != digest:
            raise StorageError(
                f"{path}: not the model that was registered; restore the file from a backup"
            )
        return states.to(state, self.backend.device)

    def load_state(self, name: str) -> tuple[State, State]:
        """Return a state of this erasure and its method's memory, on the engine's device."""
        state, memory = self.state_files.get(name)
        return states.to(state, self.backend.device), states.to(memory, self.backend.device)

    @property
    def mean(self) -> Mean:
        """The mean that joins updates by the plan."""
        return by_name(self.plan.mean)

    def server(self) -> Server:
        """Return what a method finds at the server."""
        plan = self.plan
        state = self.load_model(plan.model)
        self.backend.show_plan(plan)
        server = self.backend.server(plan.client, plan.retained, state, plan.leaver_timeout)
        return replace(server, mean=self.mean)

    @cached_property
    def parameter_aliases(self) -> dict[str, str]:
        """Further names of shared parameters, each with the one that stands for it."""
        return states.aliases(self.backend.fresh_model(0))

    @cached_property
    def trainable(self) -> frozenset[str]:
        """The entries of a state that training moves."""
        parameters = self.backend.fresh_model(0).named_parameters()
        return frozenset(name for name, value in parameters if value.requires_grad)

    def replay_detector(self) -> ReplayDetector:
        """Return what recognises old updates, those of the leaver among them."""
        client = self.plan.client
        last, digests = self.backend.last_update(client), self.backend.recorded_digests(client)
        return ReplayDetector(self.home.sketches("update"), self.trainable, last, digests)

    def engine_numbers(self, names: tuple[str, ...]) -> list[int]:
        """Return clients' numbers in the engine."""
        unknown = sorted(set(names) - self.backend.clients.keys())
        if unknown:
            raise ConfigError(f"client {unknown[0]!r} is registered but not in the federation")
        return [self.backend.clients[name] for name in names]

    def renew_lease(self) -> None:
        """Renew the lease before what cannot be undone; RecordError if another had it since."""
        self.journal.renew(self.number, self.holder, self.clock(), LEASE_SECONDS)

    def append_row(self, body: Document) -> Row:
        """Append a row to the ledger with the present time, unless it is there."""
        self.renew_lease()
        row = self.ledger.append_once(body, self.clock())
        self.save_ledger_head()
        return row

    def save_ledger_head(self) -> None:
        """Save in the journal how far the ledger goes."""
        head = self.ledger.head()
        if head != (self._saved_head or self.journal.ledger_head()):
            self.journal.save_ledger_head(head)
        self._saved_head = head

    def advance(self, details: TransitionDetails) -> None:
        """Take the request to its next state: journal, lease, ledger."""
        now, before = self.clock(), self.progress
        row = self.journal.append(
            self.number,
            details.state,
            details.model_dump(mode="json"),
            now,
            holder=self.holder,
            allowed=ALLOWED,
        )
        if details.state not in TERMINAL:
            self.journal.renew(self.number, self.holder, now, LEASE_SECONDS)
        transition = read_transition(row)
        # The entry is read again: somebody may have extended the request meanwhile.
        entry = self.journal.entry(self.number)
        self._progress = Progress(entry, (*before.transitions, transition))
        self._append_rows(transition)
        logger.info(self._describe(transition))

    def complete_ledger(self) -> None:
        """Append the rows that a kill left out after the journal was written."""
        self.append_request_rows()
        for transition in self.progress.transitions:
            self._append_rows(transition)

    def append_request_rows(self) -> None:
        """Append once that the request was accepted, and until when it was extended."""
        entry = self.progress.entry
        for body in consistency.accepted(self.journal, entry):
            self.ledger.append_once(body, entry.received)

    def _append_rows(self, transition: Transition) -> None:
        for body in self._rows(transition):
            self.ledger.append_once(body, transition.at)
        self.save_ledger_head()

    def _rows(self, transition: Transition) -> Iterator[Document]:
        """Yield the ledger's rows of a transition; they follow from the journal alone."""
        details = transition.details
        if isinstance(details, PlanDetails):
            yield self.plan_of(details.plan).body(0)
        if isinstance(details, EscalationDetails) and details.next_rung is not None:
            yield self.plan_of(details.plan).body(details.next_rung)
        if isinstance(
            details,
            StartDetails | RoundDetails | CanariesDetails | EscalationDetails | VerificationDetails,
        ):
            for sent in details.exchange.sent if details.exchange else ():
                yield from self._delivered(transition.number, details.plan, sent)
        yield consistency.transition_body(self.progress.entry.digest, transition)

    def _delivered(self, number: int, plan_digest: str, sent: Sent) -> Iterator[DeliveredBody]:
        """Yield who was sent a state on the way to a transition: the leaver, those present."""
        plan = self.plan_of(plan_digest)
        names: tuple[str, ...] = (plan.client,) if LEAVER in sent.to else ()
        if RETAINED in sent.to:
            names += self.progress.present(plan.retained, number)
        return delivered_rows(sent.model, names)

    def _describe(self, transition: Transition) -> str:
        """Return the log line of a transition."""
        name = transition.state.replace("-", " ")
        if isinstance(transition.details, RoundDetails) and self.step.rung == "retraining":
            name = "retraining"
        return describe(transition.details, name)


def delivered_rows(model: str, names: tuple[str, ...]) -> Iterator[DeliveredBody]:
    """Yield rows that say who received a model, as many as the names take."""
    for start in range(0, len(names), MAX_NAMES):
        yield DeliveredBody(model=model, clients=names[start : start + MAX_NAMES])


def describe(details: TransitionDetails, name: str) -> str:
    """Return the log line of a transition that is called `name`."""
    if isinstance(details, RoundDetails):
        return f"{name} round {details.round}{_describe_round(details)}"
    if isinstance(details, CanariesDetails):
        return f"{name}: {details.verdict.replace('-', ' ')}"
    if isinstance(details, ClosingDetails):
        return name  # the command logs the outcome, and why
    if isinstance(details, EscalationDetails):
        return f"{name}: {details.method}, {details.outcome}, {details.reason}"
    if isinstance(details, StartDetails | PromotionDetails):
        return f"{name}: {details.method}"
    if isinstance(details, PlanDetails) and details.reason:
        return f"{name}: {details.reason}"
    return name


def _describe_round(details: RoundDetails) -> str:
    gate, unused = details.gate, details.unused_weights
    line = "" if gate is None else f": retained clients answer {gate.accuracy:.1%} right"
    if unused is None:
        return line
    if unused.removed_share:
        line += f", {unused.removed_share:.0%} of the layers' squared weights removed as unused"
    if unused.kept or unused.cleared:
        names = (*unused.kept, *unused.cleared)
        total = unused.kept_count + unused.cleared_count
        line += fill_line(", these could not be removed: ", names, total)
    return line


class MonotonicClock:
    """A clock that never goes back, whatever the system's does; several threads may ask it."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._last: datetime | None = None

    def not_before(self, *times: datetime | None) -> None:
        """Return nothing earlier than these from now on."""
        with self._lock:
            self._last = max((at for at in (self._last, *times) if at is not None), default=None)

    def __call__(self) -> datetime:
        """Return the time, or the last time that was known if the clock is behind it."""
        self.not_before(self._clock())
        assert self._last is not None  # the clock's own time at least
        return self._last


_MAX_AHEAD = timedelta(minutes=5)  # of the clock, that times in the records may be


@contextmanager
def open_session(
    home: Home,
    backend: FederationBackend,
    number: int,
    key: PrivateKey,
    clock: Callable[[], datetime],
    *,
    held: HomeLock | None = None,
) -> Iterator[ErasureSession]:
    """Lock the home, lease the request, check the records and complete the ledger.

    `held` is the home's lock where the caller has it already.
    """
    if key.public_key.keyid != home.keyring()[SERVER].keyid:
        raise ConfigError(f"the server's key does not belong to {home.keys / SERVER}.pub")
    home.check_journal()
    steady_clock = MonotonicClock(clock)
    with (
        files.private(),
        lock_home(home) if held is None else nullcontext(held) as lock,
        Journal(home.journal) as journal,
        Ledger(home.ledger) as ledger,
        ModelRegistry(home.registry) as registry,
    ):
        consistency.check_home(home, journal, ledger, registry)
        consistency.complete(home, journal, ledger, clock())
        changed = (parse_time(model.changed) for model in registry.models())
        steady_clock.not_before(journal.last_time(number), ledger.last_time(), *changed)
        with lease_request(lock, journal, number, steady_clock) as holder:
            session = ErasureSession(
                home=home,
                backend=backend,
                journal=journal,
                ledger=ledger,
                registry=registry,
                key=key,
                holder=holder,
                clock=steady_clock,
                number=number,
            )
            _warn(home, clock(), steady_clock())
            files.remove_parts(home.path)  # what a kill left half written
            session.complete_ledger()
            yield session


def _warn(home: Home, clock_time: datetime, time: datetime) -> None:
    """Warn of a clock that is behind, and of files that others may write."""
    if time - clock_time > _MAX_AHEAD:
        logger.warning(
            f"the clock says {format_time(clock_time)}, but the records already have "
            f"{format_time(time)}: new times stay there until the clock has caught up; set it right"
        )
    for path in (home.path, home.journal, home.ledger, home.registry):
        if path.stat().st_mode & 0o022:
            logger.warning(f"{path} can be written by others than its owner: run chmod go-w on it")
