"""The arms of an experiment: where each starts, who trains, and which batches its rounds draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from secede.experiments.config import Config, Unlearning
from secede.experiments.setup import Federation
from secede.federation.cost import Cost
from secede.state import State
from secede.unlearning.fine_tune import FineTune
from secede.unlearning.local import LocalReport, LocalStep, LocalTask
from secede.unlearning.projected_ascent import ProjectedAscent
from secede.unlearning.reference import Reference
from secede.unlearning.retrain import Retrain
from secede.unlearning.server import ServerMethod, ServerSide

FEDAVG, RETRAIN, ASCENT = "fedavg", "retrain", "projected-ascent"


@dataclass(frozen=True)
class Start:
    """Where an arm begins, what it cost to get there, and the leaver's report if it was asked."""

    state: State
    cost: Cost
    report: LocalReport | None = None


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A start and a number of FedAvg rounds; `phase` names the batches the rounds draw."""

    name: str
    phase: str
    clients: tuple[int, ...]
    rounds: int
    start: Callable[[State], Start]  # given the global model, empty before there is one
    evidence_rounds: tuple[int, ...] = ()  # after which answers are kept for attacks


def arms(config: Config, federation: Federation) -> tuple[Arm, ...]:
    """Return all arms in the order they run; FedAvg comes first, for the others need it."""
    rounds, after = config.training.rounds, config.post_training.rounds
    fedavg = Arm(
        name=FEDAVG,
        phase="training",
        clients=federation.everyone,
        rounds=rounds,
        start=lambda _: Start(federation.engine.initial_state("initial"), Cost()),
        evidence_rounds=(rounds,),
    )
    retrain = Arm(
        name=RETRAIN,
        phase="retraining",
        clients=federation.retained,
        rounds=rounds,
        start=_at_server(federation, Retrain()),
        evidence_rounds=(rounds,),
    )

    def post_training(
        name: str, start: Callable[[State], Start], evidence_rounds: tuple[int, ...] = ()
    ) -> Arm:
        return Arm(
            name=name,
            phase="post-training",
            clients=federation.retained,
            rounds=after,
            start=start,
            evidence_rounds=evidence_rounds,
        )

    return (
        fedavg,
        retrain,
        post_training("fine-tune", _at_server(federation, FineTune())),
        post_training("reference", _at_leaver(federation, Reference())),
        post_training(ASCENT, _at_leaver(federation, ascent(config.unlearning)), (1, after)),
    )


def ascent(how: Unlearning) -> ProjectedAscent:
    """Return projected ascent as the config has it; its words stand for the method's rules."""
    return ProjectedAscent(
        radius=None if how.radius == "third" else how.radius,
        stop=how.stop,
        stop_distance=None if how.stop_distance == "search" else how.stop_distance,
        stop_accuracy=None if how.stop_accuracy == "chance" else how.stop_accuracy,
        learning_rate=how.learning_rate,
        momentum=how.momentum,
        batch_size=how.batch_size,
        epochs=how.epochs,
        clip=how.clip,
    )


def _at_server(federation: Federation, method: ServerMethod) -> Callable[[State], Start]:
    def start(global_state: State) -> Start:
        side = ServerSide(
            global_state=global_state,
            fresh_state=lambda: federation.engine.initial_state("retraining"),
        )
        return Start(method.start(side), Cost())

    return start


def _at_leaver(federation: Federation, step: LocalStep) -> Callable[[State], Start]:
    def start(global_state: State) -> Start:
        result, cost = federation.engine.ask(
            federation.leaver,
            lambda side: step.unlearn(LocalTask.of(side)),
            global_state=global_state,
        )
        return Start(result.state, cost, result.report)

    return start
