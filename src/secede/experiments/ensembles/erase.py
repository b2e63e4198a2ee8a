"""Erase the leaver of one federation as `secede erase` would, but with a fixed number of rounds.

The method's start, post-training by the method's own rounds, and after the first of these the
removal of weights that the retained clients do not use. Guard, gate and ladder are left out: they
refuse models and do not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from secede import state as states
from secede.erasure import Removal, remove_after_round, rung_of
from secede.experiments.arms import create_method, server_of
from secede.experiments.config import Config
from secede.experiments.ensembles.options import AuditOptions
from secede.experiments.setup import Federation
from secede.federation.engine import ClientSide, Cost, Engine, ReplyT, RoundReply, aggregate
from secede.state import State
from secede.unlearning import UpdateHistory, checked_start, create


class WatchedEngine:
    """An engine that keeps the last round, as the server saw it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.last_round: tuple[State, RoundReply] | None = None  # where it started, what came

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Train the clients and keep the round."""
        reply = self._engine.train_round(state, clients, phase=phase, number=number)
        self.last_round = state, reply
        return reply

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        """Ask a client."""
        return self._engine.ask(client, task, global_state=global_state, number=number)


@dataclass(frozen=True, kw_only=True)
class Erased:
    """An erased model, and what was done to get it."""

    state: State
    rounds: int
    rung: str
    removal: Removal | None  # None: no weights were looked at
    cost: Cost

    def to_record(self) -> dict[str, object]:
        """Return what was done, as records hold it."""
        removed = self.removal and {"share": self.removal.share, "zeroed": self.removal.zeroed}
        return {"rounds": self.rounds, "rung": self.rung, "unused_weights": removed}


def erase(
    config: Config,
    federation: Federation,
    global_state: State,
    options: AuditOptions,
    *,
    classes: int,
    history: UpdateHistory | None = None,
    search: Path | None = None,
    after_round: Callable[[], None] = lambda: None,
) -> Erased:
    """Erase the leaver from `global_state` by the config's first method."""
    name, engine = config.methods[0], WatchedEngine(federation.engine)
    method = create_method(config, name, federation, history=history, search=search)
    rung = rung_of(create(name, config.settings.get(name), search=search)[0])
    server = server_of(federation, global_state, history=history, engine=engine)
    start = checked_start(method, server)
    states.check_finite(start.state, f"the start of {name}")
    rounds = min(config.post_training.rounds, options.max_rounds)
    kept = rung == "retraining" or (options.keep_unused_weights and rung == "local-step")
    state, memory, cost, removal = start.state, start.memory, start.cost, None
    for number in range(1, rounds + 1):
        recovered = method.recover(server, state, memory, number)
        state, memory, cost = recovered.state, recovered.memory, cost + recovered.cost
        if number == 1 and rounds > 1 and not kept and engine.last_round is not None:
            removal = _removal(
                config,
                federation,
                engine.last_round,
                state,
                classes=classes,
                is_local=rung == "local-step",
            )
            state = removal.state
        after_round()
    states.check_finite(state, f"the model erased by {name}")
    return Erased(state=state, rounds=rounds, rung=rung, removal=removal, cost=cost)


def _removal(
    config: Config,
    federation: Federation,
    last_round: tuple[State, RoundReply],
    state: State,
    *,
    classes: int,
    is_local: bool,
) -> Removal:
    """Remove unused weights; under secure aggregation the mean of the updates must tell."""
    start, reply = last_round
    hidden = config.situation.secure_aggregation
    shown = [aggregate(reply.updates)] if hidden else [update.state for update in reply.updates]
    model = federation.engine.fresh_model("template")
    return remove_after_round(
        state,
        start,
        shown,
        model=model,
        trainable=[name for name, value in model.named_parameters() if value.requires_grad],
        classes=classes,
        is_local=is_local,
    )
