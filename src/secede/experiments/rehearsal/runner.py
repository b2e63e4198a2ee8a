"""Run a rehearsal: train a twin in each seed, erase by every candidate, and retrain twice."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from secede.errors import ConfigError, SecedeError
from secede.experiments import (
    Config,
    Federation,
    federate,
    load_dataset,
    make_deterministic,
    override,
    resolve_device,
)
from secede.experiments.arms import (
    FEDAVG,
    RETRAIN,
    RETRAIN_AGAIN,
    Arm,
    arms,
    create_history,
    create_method,
)
from secede.experiments.ensembles import AuditOptions, erase
from secede.experiments.measure import Examined, Examiner
from secede.experiments.rehearsal.rule import Measured, Scores, mean_of, reading_of
from secede.experiments.rehearsal.twin import Twin

if TYPE_CHECKING:
    from secede.experiments.ensembles import Progress

logger = logging.getLogger(__name__)

Report = Callable[[str], None]  # of a round that was trained, by what it is part of


def rehearse(twin: Twin, seeds: int, progress: Progress, *, search: Path | None = None) -> Measured:
    """Erase the leaver of `seeds` twins by every candidate, and return what was measured."""
    config = override(twin.config, {"device": resolve_device(twin.config.device)})
    make_deterministic(config.precision)
    dataset = load_dataset(config)
    progress.expect(seeds, 0, 1)
    found, failed = list[dict[str, Scores]](), dict[str, str]()
    for seed in range(seeds):
        federation = federate(config, dataset, seed, search=search)
        _check_canaries(federation)
        with tempfile.TemporaryDirectory() as scratch:
            run = _Seed(config, federation, seed, len(dataset.classes), Path(scratch), search)
            names = run.possible(named=twin.named, failed=failed)
            rounds = {name: twin.rounds_of(name, search) for name in names}
            reporter = progress.begin(seed, 3 * config.training.rounds + sum(rounds.values()))
            started = time.monotonic()
            found.append(run.scores(rounds, failed, reporter.round))
            reporter.end(time.monotonic() - started)
    return _together(found, [name for name in config.methods if name not in failed], failed)


class _Seed:
    """One twin: its models are trained, erased and scored one after the other."""

    def __init__(
        self,
        config: Config,
        federation: Federation,
        seed: int,
        classes: int,
        scratch: Path,
        search: Path | None,
    ) -> None:
        self._config, self._federation, self._seed = config, federation, seed
        self._classes, self._search = classes, search
        self._history = create_history(config, federation, scratch / "history")
        self._examiner = Examiner(federation, seed)
        self._global_state = dict(federation.engine.initial_state("initial"))

    def possible(self, *, named: bool, failed: dict[str, str]) -> list[str]:
        """Return the candidates that fit the model; one that was named has to."""
        names = list[str]()
        for name in (name for name in self._config.methods if name not in failed):
            try:
                create_method(
                    self._config,
                    name,
                    self._federation,
                    history=self._history,
                    search=self._search,
                )
                names.append(name)
            except ConfigError as error:
                if named:
                    raise
                failed[name] = str(error)
        return names

    def scores(
        self, rounds: dict[str, int], failed: dict[str, str], report: Report
    ) -> dict[str, Scores]:
        """Return the scores of the models before, retrained twice, and erased."""
        found = {arm.name: self._trained(arm, report) for arm in self._arms(rounds)}
        for name, count in rounds.items():
            try:
                found[name] = self._erased(name, count, report)
            except SecedeError as error:
                logger.warning(f"{name} failed in seed {self._seed}: {error}")
                failed[name] = str(error)
        return found

    def _arms(self, names: Iterable[str]) -> tuple[Arm, ...]:
        """Return the arms that train: FedAvg, and the retrainings."""
        config = self._config.model_copy(update={"methods": tuple(names)})
        return arms(config, self._federation, history=self._history, search=self._search)[:3]

    def _trained(self, arm: Arm, report: Report) -> Scores:
        started = time.monotonic()
        start = arm.start(self._global_state)
        state, memory, cost = start.state, start.memory, start.cost
        for number in range(1, arm.rounds + 1):
            done = arm.advance(self._global_state, state, memory, number)
            state, memory, cost = done.state, done.memory, cost + done.cost
            report(arm.name)
        seconds = time.monotonic() - started
        if arm.name == FEDAVG:
            self._global_state = dict(state)
            self._federation.engine.remembers = False  # the leaver's own state of the training
        return self._scored(self._examiner.examine(state), cost.upload_bytes, seconds)

    def _erased(self, name: str, rounds: int, report: Report) -> Scores:
        started = time.monotonic()
        erased = erase(
            self._config.model_copy(update={"methods": (name,)}),
            self._federation,
            self._global_state,
            AuditOptions(max_rounds=rounds),
            classes=self._classes,
            history=self._history,
            search=self._search,
            after_round=lambda: report(name),
        )
        seconds = time.monotonic() - started
        examined = self._examiner.examine(erased.state)
        return self._scored(examined, erased.cost.upload_bytes, seconds)

    def _scored(self, examined: Examined, upload_bytes: int, seconds: float) -> Scores:
        measured = self._examiner.measure(examined)
        return Scores(
            clean_accuracy=measured.shares["clean_accuracy"].value,
            leaver_loss=measured.own["leaver_loss"].value,
            upload_bytes=upload_bytes,
            seconds=seconds,
            canaries=reading_of(self._examiner.read_canaries(examined)),
        )


def _check_canaries(federation: Federation) -> None:
    """Raise before any training if the leaver could plant no canaries."""
    if federation.leaver not in federation.canaries:
        samples = len(federation.engine.clients[federation.leaver])
        raise ConfigError(
            f"the rehearsal needs canaries, and the leaver's {samples:,} samples are too few: "
            "raise canaries.max_share in the config, or give the leaver more samples"
        )


def _together(
    found: Sequence[dict[str, Scores]], names: Sequence[str], failed: dict[str, str]
) -> Measured:
    """Return the seeds' scores as one."""

    def mean(name: str) -> Scores:
        return mean_of([scores[name] for scores in found])

    def spread(score: Callable[[Scores], float]) -> float:
        return fmean(abs(score(each[RETRAIN]) - score(each[RETRAIN_AGAIN])) for each in found)

    return Measured(
        before=mean(FEDAVG),
        retrained=mean(RETRAIN),
        again=mean(RETRAIN_AGAIN),
        accuracy_spread=spread(lambda scores: scores.clean_accuracy),
        loss_spread=spread(lambda scores: scores.leaver_loss),
        candidates={name: mean(name) for name in names},
        failed=failed,
    )
