"""The engine that methods talk to clients through in an erasure: every reply is looked at first.

Updates that cannot be used are left out of a round, erased clients' old ones among them, and the
registry of models is asked about each.
A question that a retained client does not answer makes the work begin again without it; what the
leaver sends is refused as a whole.
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

# What they are sent by clients is such as the model; others' replies have a form of their own.
LIKE_THE_MODEL = ("federaser", "rapid-retrain", "negated-update")
T = TypeVar("T")


def with_checked_replies(roll: Participants, work: Callable[[Server], T]) -> T:
    """Do `work`, again without those who cannot be asked; QuorumError once too few are left."""
    while True:
        roll.require()
        found = roll.desk.server(roll.plan)
        numbers = tuple(roll.desk.numbers(roll.present))
        try:
            return work(replace(found, engine=_Attended(found.engine, roll), retained=numbers))
        except MissingError as error:
            roll.try_again(error)


class _Attended:
    """An engine whose replies are looked at before a method sees them."""

    def __init__(self, inner: Engine, roll: Participants) -> None:
        self._inner, self._roll = inner, roll
        self._last: tuple[State, str] | None = None
        self._leaver = roll.desk.ground.clients[roll.plan.client]
        self._returning = roll.desk.returning(roll.plan)

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Train; return the updates that can be used."""
        roll, base = self._roll, self._digest(state)
        roll.note_sent(base, [roll.names[client] for client in clients])
        reply = self._inner.train_round(state, clients, phase=phase, number=number)
        everyone = sum(reply_checks.most_gradients(roll.pins[roll.names[c]]) for c in clients)
        cost = reply_checks.believed(reply.cost, everyone)
        roll.trying += cost
        faults = dict.fromkeys(clients, reply_checks.SILENT)
        sound = dict[int, Update]()
        for update in reply.updates:
            if update.client not in faults or update.client in sound:
                continue  # nobody asked for it
            name = roll.names[update.client]
            fault = reply_checks.fault_of_update(update, state, roll.pins[name])
            fault = fault or self._refused(name, base)
            if fault is None:
                sound[update.client] = update
                del faults[update.client]
            else:
                faults[update.client] = fault
        for client in self._returning.old(sound, state):
            del sound[client]
            faults[client] = reply_checks.REFUSED
        self._leave_out(faults)
        updates = tuple(sound[client] for client in clients if client in sound)
        roll.trained = (state, updates)
        total = sum(update.samples for update in updates)
        weighs = roll.plan.mean == "mean"  # else nobody can be taken out of the mean again
        shares = {roll.names[u.client]: weighs * u.samples / total for u in updates}
        roll.desk.ground.aggregated(shares)
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
        roll, leaves = self._roll, client == self._leaver
        name, started = roll.names[client], time.monotonic()
        roll.note_sent(self._digest(global_state), [name])
        try:
            reply, cost = self._inner.ask(client, task, global_state=global_state, number=number)
        except SilentError:
            if leaves:
                raise
            raise MissingError(client, reply_checks.SILENT) from None
        except DataError:
            if leaves:
                raise
            raise MissingError(client, reply_checks.MALFORMED) from None
        cost = reply_checks.believed(cost, reply_checks.most_gradients(roll.pins[name]))
        roll.trying += cost
        if isinstance(reply, LocalResult):
            checked: Any = reply_checks.checked_result(reply, global_state, roll.pins[name])
            return checked, cost
        like = global_state if roll.desk.step.method in LIKE_THE_MODEL else None
        limit = limit_bytes(global_state)
        fault = reply_checks.fault_of_reply(reply, roll.pins[name], limit_bytes=limit, like=like)
        if not leaves and time.monotonic() - started > roll.plan.client_timeout:
            fault = reply_checks.SILENT
        if fault is None:
            return reply, cost
        if leaves:
            raise GuardError(f"the leaver's reply is refused: {fault}")
        raise MissingError(client, fault)

    def _leave_out(self, faults: Mapping[int, str]) -> None:
        roll = self._roll
        broken = sum(fault == reply_checks.NOT_FINITE for fault in faults.values())
        refused = sum(fault == reply_checks.REFUSED for fault in faults.values())
        for client, fault in faults.items():
            roll.leave_out(roll.names[client], fault)
        try:
            roll.require()
        except QuorumError:
            if 2 * broken >= len(faults):  # so many do not lie: what they started from is broken
                roll.left_out.clear()
                raise StateError(
                    f"the updates of {broken} retained clients are not finite: training diverged"
                ) from None
            if 2 * refused >= len(faults):
                raise GuardError(
                    "the round starts from a model out of use, or with erased clients' updates"
                ) from None
            raise

    def _refused(self, name: str, base: str) -> str | None:
        """Say whether the registry refuses an update: of an erased client, or a retired model's."""
        roll = self._roll
        try:
            roll.desk.registry.check_update(name, base, in_progress=self._working)
        except GuardError:
            return reply_checks.REFUSED
        return None

    @cached_property
    def _working(self) -> frozenset[str] | None:
        """The states of this erasure that a round may start from; None: any, before the first."""
        course = self._roll.desk.course
        if not course.rounds:
            return None
        return frozenset(str(t.details["model"]) for t in course.way if t.details.get("model"))

    def _digest(self, state: State) -> str:
        if self._last is None or self._last[0] is not state:
            self._last = (state, states.digest(state))
        return self._last[1]
