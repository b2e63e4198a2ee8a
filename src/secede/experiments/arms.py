"""The arms of an experiment: where each starts, who trains, and how its rounds go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from secede.errors import ConfigError
from secede.experiments.config import JUDGED_ROUND, Config
from secede.experiments.setup import Federation
from secede.federation.engine import Engine, aggregate
from secede.state import State, size_bytes
from secede.unlearning import (
    Method,
    Recovered,
    Server,
    Start,
    UpdateHistory,
    checked_start,
    create,
    registry,
)

FEDAVG, RETRAIN, RETRAIN_AGAIN = "fedavg", "retrain", "retrain-again"
TRAINING = "training"  # the phase whose rounds everybody trains in


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A start and rounds; both get FedAvg's last state, which is empty before there is one."""

    name: str
    clients: tuple[int, ...]  # who trains
    rounds: int
    start: Callable[[State], Start]
    advance: Callable[[State, State, State, int], Recovered]  # global model, state, memory, round
    evidence_rounds: tuple[int, ...] = ()  # after which outputs are recorded for attacks


def arms(
    config: Config,
    federation: Federation,
    *,
    history: UpdateHistory | None = None,
    search: Path | None = None,
) -> tuple[Arm, ...]:
    """Return all arms in the order they run; FedAvg comes first, because the others need it."""
    rounds, after = config.training.rounds, config.post_training.rounds
    engine = federation.engine

    def fedavg_round(
        phase: str, clients: tuple[int, ...], history: UpdateHistory | None = None
    ) -> Advance:
        def advance(_: State, state: State, memory: State, number: int) -> Recovered:
            reply = engine.train_round(state, clients, phase=phase, number=number)
            if history is not None:
                history.record(number, state, reply.updates)
            return Recovered(state=aggregate(reply.updates), cost=reply.cost, memory=memory)

        return advance

    def server(global_state: State) -> Server:
        return server_of(federation, global_state, history=history)

    def method_arm(name: str, method: Method) -> Arm:
        judged = min(JUDGED_ROUND, after)
        return Arm(
            name=name,
            clients=federation.retained,
            rounds=after,
            start=lambda state: checked_start(method, server(state)),
            advance=lambda global_state, state, memory, number: method.recover(
                server(global_state), state, memory, number
            ),
            evidence_rounds=(1, judged, after) if name == config.methods[0] else (judged,),
        )

    fedavg = Arm(
        name=FEDAVG,
        clients=federation.everyone,
        rounds=rounds,
        start=lambda _: Start(state=engine.initial_state("initial")),
        advance=fedavg_round(TRAINING, federation.everyone, history),
        evidence_rounds=(rounds,),
    )

    def retraining_arm(name: str, randomness: str) -> Arm:
        return Arm(
            name=name,
            clients=federation.retained,
            rounds=rounds,
            start=lambda _: Start(state=engine.initial_state(randomness)),
            advance=fedavg_round(randomness, federation.retained),
            evidence_rounds=(rounds,),
        )

    retrained = [retraining_arm(RETRAIN, "retraining")]
    if config.training.retrain_again:
        retrained.append(retraining_arm(RETRAIN_AGAIN, "retraining again"))
    methods = {
        name: create_method(config, name, federation, history=history, search=search)
        for name in config.methods
    }
    return fedavg, *retrained, *(method_arm(name, method) for name, method in methods.items())


Advance = Callable[[State, State, State, int], Recovered]


def create_history(config: Config, federation: Federation, folder: Path) -> UpdateHistory | None:
    """Return the server's history in `folder`, if the situation has one; raise if it cannot fit."""
    situation = config.situation
    if not situation.history:
        return None
    history = UpdateHistory(
        folder,
        interval=situation.history_interval,
        limit_bytes=int(situation.history_limit_gb * 1e9),
    )
    history.check_fits(
        state_bytes=size_bytes(federation.engine.initial_state("initial")),
        clients=len(federation.everyone),
        rounds=config.training.rounds,
    )
    return history


def server_of(
    federation: Federation,
    global_state: State,
    *,
    history: UpdateHistory | None = None,
    engine: Engine | None = None,
) -> Server:
    """Return what a method is given; `engine` stands between it and the federation's own."""
    simulator = federation.engine
    own = simulator.own.get(federation.leaver)
    return Server(
        engine=engine or simulator,
        global_state=global_state,
        leaver=federation.leaver,
        retained=federation.retained,
        fresh_state=lambda: simulator.initial_state("retraining"),
        fresh_model=lambda: simulator.fresh_model("template"),
        history=history,
        unlabelled=federation.unlabelled,
        weight=None if own is None else own.weight,
    )


def create_method(
    config: Config,
    name: str,
    federation: Federation,
    *,
    history: UpdateHistory | None = None,
    search: Path | None = None,
) -> Method:
    """Return a method with its settings; raise before any training if it cannot work here."""
    settings = config.settings.get(name, {})
    if registry.base_name(name) == "class-pruning" and federation.classes:
        settings = {"classes": federation.classes, **settings}
    entry, method = create(name, settings, search=search)
    registry.check_possible(entry, config.situation.for_methods(), config.scenario.name)
    # A user's own class need not derive from `Method`.
    try:
        getattr(method, "check_history", lambda _: None)(history)
        getattr(method, "check_model", lambda _: None)(federation.engine.fresh_model("template"))
    except ConfigError as error:
        raise ConfigError(f"method {name!r}: {error}") from None
    return method
