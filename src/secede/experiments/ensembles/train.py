"""Train the models of one federation of an audit, and ask them.

O, trained with everybody; R, from scratch without the leaver; R', the same from another seed; and
U, O erased end to end. R and R' depend on the retained clients' samples and on seeds alone, never
on which samples the leaver was dealt.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from secede import state as states
from secede.audit.ensembles.margins import ENSEMBLES, Ensemble
from secede.experiments.arms import TRAINING, create_history
from secede.experiments.config import Config
from secede.experiments.ensembles import variants
from secede.experiments.ensembles.erase import Erased, erase
from secede.experiments.ensembles.examine import Answers, Questions
from secede.experiments.ensembles.material import Material
from secede.experiments.ensembles.members import PLAIN, QUANTISED, TRAINED_ON, Member
from secede.experiments.ensembles.options import AuditOptions
from secede.experiments.ensembles.rounds import train_rounds
from secede.experiments.parallel import Stopped
from secede.experiments.setup import (
    Federation,
    leaver_salt,
    plant_canaries,
    simulate,
)
from secede.federation.executors.choose import Choice
from secede.federation.simulator import Simulator
from secede.state import State

RETRAINING = "retraining"  # the phase whose rounds the retained clients train in
ORDINARY = "ordinary training"  # and that after an erasure, without its hold
RELEARNING = "relearning_steps"

Report = Callable[[str], None]  # of a round that was trained, by what it is part of


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a federation's training depends on."""

    config: Config
    options: AuditOptions
    material: Material
    choice: Choice | None = None  # the executor; None: chosen anew
    search: Path | None = None

    def rounds(self) -> int:
        """Return the rounds that one federation trains in all."""
        after = min(self.config.post_training.rounds, self.options.max_rounds)
        return 3 * self.config.training.rounds + after + len(ENSEMBLES) * self.options.train_on

    def simulator(self, number: int, member: torch.Tensor, *, again: bool = False) -> Simulator:
        """Return a federation's engine; that of the null has the same clients, another seed."""
        material, config = self.material, self.config
        clients = material.clients(member)
        salt = leaver_salt(config, material.federation_seed(number))
        plant_canaries(config, clients, {config.clients.leaver: salt})
        return simulate(
            config,
            material.dataset,
            clients,
            material.federation_seed(number, again=again),
            search=self.search,
            choice=self.choice,
        )

    def federation(self, number: int, member: torch.Tensor) -> Federation:
        """Return one federation, ready to train."""
        material, leaver = self.material, self.config.clients.leaver
        return Federation(
            engine=self.simulator(number, member),
            leaver=leaver,
            retained=tuple(material.retained),
            test=material.test,
            probe=material.probe,
            nonmembers=material.pool.take(~member.to(material.pool.y.device)),
            unlabelled=material.unlabelled,
            classes=getattr(material.scenario, "classes", ()),
        )


def train(job: Job, number: int, scratch: Path, stop: threading.Event, report: Report) -> Member:
    """Train and ask the models of federation `number`; `scratch` is for a server's history."""
    started = time.monotonic()
    member = job.material.member(number)
    federation = job.federation(number, member)

    def after(what: str) -> Callable[[], None]:
        def ended() -> None:
            report(what)
            if stop.is_set():
                raise Stopped

        return ended

    models, erased = _models(job, number, federation, scratch, after)
    questions = Questions(job.material, member)
    answers = {PLAIN: _asked(questions, federation, models)}
    if job.options.quantised:
        coarse = {name: variants.quantised(state) for name, state in models.items()}
        answers[QUANTISED] = _asked(questions, federation, coarse)
    further = dict[str, dict[Ensemble, float]]()
    if job.options.relearn:
        target = answers[PLAIN]["original"].scores["leaver_loss"]
        further[RELEARNING] = _relearning(job, number, federation, models, member, target)
    if rounds := job.options.train_on:
        later = {
            name: train_rounds(
                federation.engine,
                state,
                federation.retained,
                rounds,
                phase=ORDINARY,
                after_round=after(ORDINARY),
            )
            for name, state in models.items()
        }
        answers[TRAINED_ON] = _asked(questions, federation, later)
    return Member(
        number=number,
        member=member.numpy(),
        answers=answers,
        further=further,
        notes={
            "erasure": erased.to_record(),
            "models": {name: states.digest(state) for name, state in models.items()},
            "seconds": time.monotonic() - started,
        },
    )


def _models(
    job: Job,
    number: int,
    federation: Federation,
    scratch: Path,
    after: Callable[[str], Callable[[], None]],
) -> tuple[dict[Ensemble, State], Erased]:
    """Return the four models and what the erasure did."""
    engine, retained, config = federation.engine, federation.retained, job.config
    shutil.rmtree(scratch, ignore_errors=True)  # of a federation that was killed
    history = create_history(config, federation, scratch)
    rounds = config.training.rounds
    original = train_rounds(
        engine,
        engine.initial_state("initial"),
        federation.everyone,
        rounds,
        phase=TRAINING,
        after_round=after("training"),
        record=None if history is None else history.record,
    )
    engine.remembers = False
    null = job.simulator(number, job.material.member(number), again=True)
    retrained, again = (
        train_rounds(
            each,
            each.initial_state(RETRAINING),
            retained,
            rounds,
            phase=RETRAINING,
            after_round=after(what),
        )
        for each, what in ((engine, RETRAINING), (null, "retraining again"))
    )
    erased = erase(
        config,
        federation,
        original,
        job.options,
        classes=len(job.material.dataset.classes),
        history=history,
        search=job.search,
        after_round=after("erasing"),
    )
    if history is not None:
        history.delete()
    models: dict[Ensemble, State] = {
        "original": original,
        "erased": erased.state,
        "retrained": retrained,
        "retrained-again": again,
    }
    return models, erased


def _asked(
    questions: Questions, federation: Federation, models: Mapping[Ensemble, State]
) -> dict[Ensemble, Answers]:
    return {name: questions.ask(federation.engine.model(state)) for name, state in models.items()}


def _relearning(
    job: Job,
    number: int,
    federation: Federation,
    models: Mapping[Ensemble, State],
    member: torch.Tensor,
    target: float,
) -> dict[Ensemble, float]:
    """Return the steps that bring each model back to the original's loss at the leaver."""
    pool = job.material.pool
    own = pool.take(member.to(pool.y.device))
    training, seed = job.config.training, job.material.federation_seed(number)
    return {
        name: float(
            variants.relearning_steps(federation, state, own, training, seed, target=target)
        )
        for name, state in models.items()
    }
