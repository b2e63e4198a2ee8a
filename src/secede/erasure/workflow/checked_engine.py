"""The engine that methods talk to clients through in an erasure: it checks every reply first.

Updates that cannot be used are left out of a round, erased clients' old ones among them, and the
registry of models is asked about each. When a retained client does not answer a question, the work
begins again without it. What the leaver sends is refused as a whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from secede import state as states
from secede.erasure.defences import reply_checks
from secede.erasure.defences.state_message import limit_bytes
from secede.erasure.documents import LeftOut, Plan
from secede.erasure.storage import LEAVER, MAX_NAMED, RETAINED, Exchange, Sent
from secede.erasure.workflow.session import ErasureSession
from secede.errors import DataError, GuardError, SecedeError, SilentError, StateError
from secede.federation.engine import ClientSide, Cost, Engine, ReplyT, RoundReply, Update
from secede.state import State
from secede.unlearning import LocalResult, Server

logger = logging.getLogger(__name__)


class QuorumError(SilentError):
    """Too few retained clients take part."""


class MissingError(SecedeError):
    """A retained client whose reply cannot be had: the work begins again without it."""

    def __init__(self, client: int, why: str) -> None:
        super().__init__(f"client {client}: {why}")
        self.client, self.why = client, why


@dataclass(kw_only=True)
class Participants:
    """Who takes part in one transition's work, and what it took."""

    session: ErasureSession
    plan: Plan
    present: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    sent: dict[str, set[str]] = field(default_factory=dict)  # states by digest, and to whom
    last_round: tuple[State, tuple[Update, ...]] | None = None  # its start and its updates
    cost_wasted: Cost = field(default_factory=Cost)  # of exchanges whose results were not used
    cost_in_progress: Cost = field(default_factory=Cost)  # of the work that is under way

    @classmethod
    def of(cls, session: ErasureSession) -> Participants:
        """Return those who still take part in this rung."""
        plan = session.plan
        session.backend.set_timeout(plan.client_timeout)
        session.backend.set_retraining(session.step.rung == "retraining")
        present = session.progress.present(plan.retained)
        participants = cls(session=session, plan=plan, present=present)
        session.backend.require_quorum(participants.check_round)
        return participants

    def begin_again(self, missing: MissingError) -> None:
        """Begin again without a client; what was spent until here is wasted."""
        self.leave_out(self.client_names[missing.client], missing.why)
        self.cost_wasted, self.cost_in_progress = self.cost, Cost()

    @property
    def cost(self) -> Cost:
        """What all of it took."""
        return self.cost_wasted + self.cost_in_progress

    def leave_out(self, name: str, why: str) -> None:
        """Go on without a client; where it counts as silent, its engine has logged why."""
        if why != reply_checks.SILENT and name not in self.left_out:
            logger.warning(f"left out: client {name!r}: {why}")
        self.left_out.setdefault(name, why)
        self.present = tuple(other for other in self.present if other != name)

    def check_quorum(self) -> None:
        """Raise unless those present have the plan's share of the retained clients' samples."""
        share = self.sample_share(self.present)
        if share < self.plan.quorum or not self.present:
            reasons = sorted({*self.left_out.values()})
            listed = f" ({', '.join(reasons)})" if reasons else ""
            raise QuorumError(
                f"{len(self.present)} of {len(self.plan.retained)} retained clients take part, "
                f"with {share:.0%} of the samples, expected {self.plan.quorum:.0%} or more{listed}"
            )

    def check_round(self, names: Sequence[str]) -> None:
        """Leave out everybody but `names`; raise if these alone would be too few for a round."""
        for name in {*self.present} - {*names}:
            self.leave_out(name, reply_checks.SILENT)
        self.check_quorum()

    def sample_share(self, names: Sequence[str]) -> float:
        """Return the share of the retained clients' samples; of heads where one is not pinned."""
        pinned = self.pinned_samples
        if any(pinned[name] is None for name in self.plan.retained):
            return len(names) / len(self.plan.retained)
        total = sum(pinned[name] or 0 for name in self.plan.retained)
        return sum(pinned[name] or 0 for name in names) / total

    def exchange(self, cost: Cost | None = None) -> Exchange:
        """Return what the journal keeps of it; `cost` instead of all that it took."""
        left_out = sorted(self.left_out.items())[:MAX_NAMED]
        sent = list(self.sent.items())[:MAX_NAMED]
        return Exchange(
            cost=self.cost if cost is None else cost,
            left_out=tuple(LeftOut(client=name, why=why) for name, why in left_out),
            left_out_count=len(self.left_out),
            sent=tuple(
                Sent(model=digest, to=tuple(who for who in (LEAVER, RETAINED) if who in to))
                for digest, to in sent
            ),
        )

    @cached_property
    def pinned_samples(self) -> Mapping[str, int | None]:
        """Sample counts that the federation pinned, the leaver's too."""
        names = (*self.plan.retained, self.plan.client)
        return {name: self.session.backend.samples(name) for name in names}

    @cached_property
    def client_names(self) -> Mapping[int, str]:
        """Clients' names by their numbers in the engine."""
        return {number: name for name, number in self.session.backend.clients.items()}

    def record_sent(self, digest: str, names: Sequence[str]) -> None:
        """Record who was sent a state."""
        to = {LEAVER if name == self.plan.client else RETAINED for name in names}
        self.sent.setdefault(digest, set()).update(to)


# Clients' replies to these are such as the model; others' replies have a form of their own.
METHODS_WITH_MODEL_REPLIES = ("federaser", "rapid-retrain", "negated-update", "take-back")
T = TypeVar("T")


def with_checked_replies(participants: Participants, work: Callable[[Server], T]) -> T:
    """Do `work`, again without those who cannot be asked; QuorumError once too few are left."""
    while True:
        participants.check_quorum()
        session = participants.session
        server = session.server()
        retained = tuple(session.engine_numbers(participants.present))
        engine = _CheckedEngine(server.engine, participants)
        try:
            return work(replace(server, engine=engine, retained=retained))
        except MissingError as error:
            participants.begin_again(error)


class _CheckedEngine:
    """An engine whose replies are checked before a method sees them."""

    def __init__(self, inner: Engine, participants: Participants) -> None:
        self._inner, self._participants = inner, participants
        self._session, self._plan = participants.session, participants.plan
        self._last_digest: tuple[State, str] | None = None
        self._leaver = self._session.backend.clients[self._plan.client]
        self._replays = self._session.replay_detector()

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Train; return the updates that can be used."""
        participants, base = self._participants, self._digest(state)
        names, pinned = participants.client_names, participants.pinned_samples
        participants.record_sent(base, [names[client] for client in clients])
        reply = self._inner.train_round(state, clients, phase=phase, number=number)
        max_gradients = sum(reply_checks.max_gradients(pinned[names[c]]) for c in clients)
        cost = reply_checks.cap_gradients(reply.cost, max_gradients)
        participants.cost_in_progress += cost
        faults = dict.fromkeys(clients, reply_checks.SILENT)
        sound = dict[int, Update]()
        for update in reply.updates:
            if update.client not in faults or update.client in sound:
                continue  # nobody asked for it
            name = names[update.client]
            fault = reply_checks.fault_of_update(update, state, pinned[name])
            fault = fault or self._refused(name, base)
            if fault is None:
                sound[update.client] = update
                del faults[update.client]
            else:
                faults[update.client] = fault
        for client in self._replays.replays(sound, state):
            del sound[client]
            faults[client] = reply_checks.REFUSED
        self._leave_out(faults)
        updates = tuple(sound[client] for client in clients if client in sound)
        participants.last_round = (state, updates)
        total = sum(update.samples for update in updates)
        weighs = self._plan.mean == "mean"  # else nobody can be taken out of the mean again
        shares = {names[u.client]: weighs * u.samples / total for u in updates}
        self._session.backend.aggregated(shares)
        return RoundReply(updates, cost)

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        """Ask; a retained client without a usable reply is missing, the leaver's is refused."""
        participants, is_leaver = self._participants, client == self._leaver
        name, started = participants.client_names[client], time.monotonic()
        pinned = participants.pinned_samples[name]
        participants.record_sent(self._digest(global_state), [name])
        try:
            reply, cost = self._inner.ask(client, task, global_state=global_state, number=number)
        except SilentError:
            if is_leaver:
                raise
            raise MissingError(client, reply_checks.SILENT) from None
        except DataError:
            if is_leaver:
                raise
            raise MissingError(client, reply_checks.MALFORMED) from None
        cost = reply_checks.cap_gradients(cost, reply_checks.max_gradients(pinned))
        participants.cost_in_progress += cost
        if isinstance(reply, LocalResult):
            checked: Any = reply_checks.checked_result(reply, global_state, pinned)
            return checked, cost
        like_model = self._session.step.method in METHODS_WITH_MODEL_REPLIES
        fault = reply_checks.fault_of_reply(
            reply,
            pinned,
            limit_bytes=limit_bytes(global_state),
            template=global_state if like_model else None,
        )
        if not is_leaver and time.monotonic() - started > self._plan.client_timeout:
            fault = reply_checks.SILENT
        if fault is None:
            return reply, cost
        if is_leaver:
            raise GuardError(f"the leaver's reply is refused: {fault}")
        raise MissingError(client, fault)

    def _leave_out(self, faults: Mapping[int, str]) -> None:
        """Leave clients out of the round; raise if too few are left, and say whose fault it is."""
        participants = self._participants
        broken = sum(fault == reply_checks.NOT_FINITE for fault in faults.values())
        refused = sum(fault == reply_checks.REFUSED for fault in faults.values())
        for client, fault in faults.items():
            participants.leave_out(participants.client_names[client], fault)
        try:
            participants.check_quorum()
        except QuorumError:
            if 2 * broken >= len(faults):  # so many do not lie: what they started from is broken
                participants.left_out.clear()
                raise StateError(
                    f"the updates of {broken} retained clients are not finite: training diverged"
                ) from None
            if 2 * refused >= len(faults):
                raise GuardError(
                    "the round starts from a model out of use, or with erased clients' updates"
                ) from None
            raise

    def _refused(self, name: str, base: str) -> str | None:
        """Return whether the registry refuses an update: an erased client's, a retired model's."""
        try:
            self._session.registry.check_update(name, base, in_progress=self._working)
        except GuardError:
            return reply_checks.REFUSED
        return None

    @cached_property
    def _working(self) -> frozenset[str] | None:
        """The states of this erasure that a round may start from; None: any, before the first."""
        progress = self._session.progress
        if not progress.rounds:
            return None
        models = (transition.details.ledger_model for transition in progress.transitions)
        return frozenset(model for model in models if model)

    def _digest(self, state: State) -> str:
        if self._last_digest is None or self._last_digest[0] is not state:
            self._last_digest = (state, states.digest(state))
        return self._last_digest[1]
