"""The arms of an experiment: where each starts, who trains, and which batches its rounds draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from secede.errors import ConfigError
from secede.experiments.config import Config
from secede.experiments.setup import Federation
from secede.federation.engine import aggregate
from secede.state import State
from secede.unlearning import registry
from secede.unlearning.create import create
from secede.unlearning.method import Method, Recovered, Server, Start, checked_start
from secede.unlearning.methods.retrain import Retrain
from secede.unlearning.update_history import UpdateHistory

FEDAVG, RETRAIN = "fedavg", "retrain"
TRAINING = "training"  # names the batches of everybody's rounds


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A start and some rounds; both are given the global model, empty before there is one."""

    name: str
    clients: tuple[int, ...]  # who trains
    rounds: int
    start: Callable[[State], Start]
    advance: Callable[[State, State, State, int], Recovered]  # global model, state, memory, round
    evidence_rounds: tuple[int, ...] = ()  # after which answers are kept for attacks


def arms(
    config: Config,
    federation: Federation,
    *,
    history: UpdateHistory | None = None,
    search: Path | None = None,
) -> tuple[Arm, ...]:
    """Return all arms in the order they run; FedAvg comes first, for the others need it."""
    rounds, after = config.training.rounds, config.post_training.rounds
    engine = federation.engine

    def averaging(
        phase: str, clients: tuple[int, ...], history: UpdateHistory | None = None
    ) -> Advance:
        def advance(_: State, state: State, memory: State, number: int) -> Recovered:
            reply = engine.train_round(state, clients, phase=phase, number=number)
            if history is not None:
                history.record(number, state, reply.updates)
            return Recovered(state=aggregate(reply.updates), cost=reply.cost, memory=memory)

        return advance

    def server(global_state: State) -> Server:
        own = engine.own.get(federation.leaver)
        return Server(
            engine=engine,
            global_state=global_state,
            leaver=federation.leaver,
            retained=federation.retained,
            fresh_state=lambda: engine.initial_state("retraining"),
            fresh_model=lambda: engine.fresh_model("template"),
            history=history,
            unlabelled=federation.unlabelled,
            weight=None if own is None else own.weight,
        )

    def erasing(name: str, method: Method) -> Arm:
        judged = name == config.methods[0]
        return Arm(
            name=name,
            clients=federation.retained,
            rounds=after,
            start=lambda state: checked_start(method, server(state)),
            advance=lambda globally, state, memory, number: method.recover(
                server(globally), state, memory, number
            ),
            evidence_rounds=(1, after) if judged else (),
        )

    fedavg = Arm(
        name=FEDAVG,
        clients=federation.everyone,
        rounds=rounds,
        start=lambda _: Start(state=engine.initial_state("initial")),
        advance=averaging(TRAINING, federation.everyone, history),
        evidence_rounds=(rounds,),
    )
    retrain = Arm(
        name=RETRAIN,
        clients=federation.retained,
        rounds=rounds,
        start=lambda state: Retrain().start(server(state)),
        advance=averaging("retraining", federation.retained),
        evidence_rounds=(rounds,),
    )
    made = {name: _create(config, name, federation, search) for name in config.methods}
    for name, method in made.items():
        # A user's own need not be a `Method` by descent.
        try:
            getattr(method, "check_history", lambda _: None)(history)
            getattr(method, "check_model", lambda _: None)(engine.fresh_model("template"))
        except ConfigError as error:
            raise ConfigError(f"method {name!r}: {error}") from None
    return fedavg, retrain, *(erasing(name, method) for name, method in made.items())


Advance = Callable[[State, State, State, int], Recovered]


def _create(config: Config, name: str, federation: Federation, search: Path | None) -> Method:
    settings = config.settings.get(name, {})
    if registry.base_name(name) == "class-pruning" and federation.classes:
        settings = {"classes": federation.classes, **settings}
    entry, method = create(name, settings, search=search)
    registry.check_possible(entry, config.situation.for_methods(), config.scenario.name)
    return method
