"""The engine that methods talk to clients through in an erasure: it checks every reply first.

Updates that cannot be used are left out of a round, erased clients' old ones among them, and the
registry of models is asked about each. When a retained client does not answer a question, the work
begins again without it. What the leaver sends is refused as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from secede import state as states
from secede.erasure.defences import reply_checks
from secede.erasure.defences.state_message import limit_bytes
from secede.erasure.workflow.participants import MissingError, Participants, QuorumError
from secede.errors import DataError, GuardError, SilentError, StateError
from secede.federation.cost import Cost
from secede.federation.engine import ClientSide, Engine, ReplyT, RoundReply, Update
from secede.state import State
from secede.unlearning.local_step import LocalResult
from secede.unlearning.method import Server

# Clients' replies to these are such as the model; others' replies have a form of their own.
METHODS_WITH_MODEL_REPLIES = ("federaser", "rapid-retrain", "negated-update")
T = TypeVar("T")


def with_checked_replies(participants: Participants, work: Callable[[Server], T]) -> T:
    """Do `work`, again without those who cannot be asked; QuorumError once too few are left."""
    while True:
        participants.check_quorum()
        session = participants.session
        server = session.server(participants.plan)
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
        self._replays = self._session.replay_detector(self._plan)

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
