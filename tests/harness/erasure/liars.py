"""Federations whose clients lie about more than a state: counts, sample numbers, reports, kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from harness.erasure.small import Hostile
from secede.erasure.defences import gate
from secede.erasure.defences.gate import Tally
from secede.federation.engine import ClientSide, Cost, ReplyT, RoundReply, Update
from secede.state import State
from secede.unlearning.method import LocalReport, LocalResult, Reply, Server


class Liars(Hostile):
    """Clients called `who` change their counts, updates or reports on the way."""

    def __init__(
        self,
        home: Any,
        *,
        who: Sequence[int] = (),
        counts: Callable[[Reply], Reply] | None = None,
        update: Callable[[Update], Update] | None = None,
        report: Callable[[LocalReport], LocalReport] | None = None,
        reply: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(home, **options)
        self.who, self.counts, self.update, self.report = who, counts, update, report
        self.reply = reply

    def tally(self, clients: Sequence[int], state: State, before: State | None = None) -> Tally:
        engine: Any = _Changed(self, self.engine, self.counts)
        return gate.tally(engine, clients, state, before)

    def server(self, client: str, retained: Sequence[str], state: State, seconds: float) -> Server:
        plain = super().server(client, retained, state, seconds)
        engine: Any = _Changed(self, plain.engine, self.reply)
        return replace(plain, engine=engine)


class _Changed:
    def __init__(self, liars: Liars, inner: Any, change: Callable[[Any], Any] | None) -> None:
        self.liars, self.inner, self.change = liars, inner, change

    def train_round(self, state: State, clients: Sequence[int], **how: Any) -> RoundReply:
        reply = self.inner.train_round(state, clients, **how)
        lie = self.liars.update
        if lie is None:
            return reply  # type: ignore[no-any-return]
        updates = [lie(u) if u.client in self.liars.who else u for u in reply.updates]
        return RoundReply(tuple(updates), reply.cost)

    def ask(
        self, client: int, task: Callable[[ClientSide], ReplyT], **how: Any
    ) -> tuple[ReplyT, Cost]:
        reply, cost = self.inner.ask(client, task, **how)
        if isinstance(reply, LocalResult) and self.liars.report is not None:
            reply = replace(reply, report=self.liars.report(reply.report))
        if client in self.liars.who and self.change is not None:
            reply = self.change(reply)
        return reply, cost
