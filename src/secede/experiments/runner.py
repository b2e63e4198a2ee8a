"""Runs an experiment seed by seed, arm by arm, round by round; goes on where a kill left it.

Every arm is a start state and rounds of FedAvg from there: everybody's training, retraining, and
each method's post-training. Post-training rounds draw the same batches in every arm, so that
methods differ by their start alone.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from secede import __version__
from secede import state as states
from secede.data.samples import Dataset
from secede.errors import RecordError, StateError
from secede.experiments import config as configs
from secede.experiments.arms import ASCENT, FEDAVG, RETRAIN, Arm, arms
from secede.experiments.config import Config
from secede.experiments.fingerprint import fingerprints
from secede.experiments.measure import Answers, Measured, answers, measure, membership
from secede.experiments.records import (
    CONFIG,
    RESULT,
    Checkpoint,
    SeedFolder,
    read_json,
    run_folder,
    write_json,
)
from secede.experiments.setup import (
    Federation,
    federate,
    load_dataset,
    make_deterministic,
    resolve_device,
)
from secede.federation.engine import OwnState, aggregate
from secede.state import State

CHECKPOINT_SECONDS = 5.0
_OWN = "leaver-own"
_LOCAL_STEP = "local-step.json"


class Progress(Protocol):
    """Is told how a run goes; the command line draws it."""

    def begin(self, config: Config, seed: int, rounds: int) -> None:
        """A seed starts or goes on, with this many rounds in all."""

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        """A round of an arm is done, or was found done."""

    def reused(self, config: Config, seed: int) -> None:
        """A seed was found finished."""


def run(
    config: Config,
    seeds: Sequence[int],
    runs: Path,
    progress: Progress,
    *,
    search: Path | None = None,
) -> Path:
    """Run `config` for every seed that is not finished yet and return the run's folder."""
    config = configs.override(config, {"device": resolve_device(config.device)})
    digest = configs.digest(config, fingerprints(config, search))
    folder = run_folder(runs, config.name, digest)
    dataset: Dataset | None = None
    for seed in seeds:
        records = SeedFolder(folder / f"seed-{seed}")
        if records.finished:
            _check_same(records, digest)
            progress.reused(config, seed)
            continue
        make_deterministic()
        dataset = dataset or load_dataset(config)
        federation = federate(config, dataset, seed, search=search)
        write_json(folder / CONFIG, _resolved(config))
        with records.locked():
            _SeedRun(config, digest, seed, records, federation, progress).run()
    return folder


class _SeedRun:
    """One seed in progress."""

    def __init__(
        self,
        config: Config,
        digest: str,
        seed: int,
        records: SeedFolder,
        federation: Federation,
        progress: Progress,
    ) -> None:
        self._config, self._digest, self._seed = config, digest, seed
        self._records, self._federation, self._progress = records, federation, progress
        self._retrained: Measured | None = None  # what the arms after retraining compare with

    def run(self) -> None:
        """Run all arms, attack their models, and write the result."""
        self._records.begin(_environment(self._config.device))
        self._records.drop_rows_beyond_checkpoints()
        all_arms = arms(self._config, self._federation)
        self._progress.begin(self._config, self._seed, sum(arm.rounds for arm in all_arms))
        final: dict[str, State] = {}
        seconds: dict[str, float] = {}
        for arm in all_arms:
            end = self._run_arm(arm, final.get(FEDAVG, {}))
            final[arm.name], seconds[arm.name] = end.state, end.cost.seconds
        write_json(
            self._records.path / RESULT,
            {
                "seed": self._seed,
                "config_digest": self._digest,
                "seconds": sum(seconds.values()),
                "arms": {
                    arm.name: {"rounds": arm.rounds, "digest": states.digest(final[arm.name])}
                    for arm in all_arms
                },
                "local_step": read_json(self._records.path / _LOCAL_STEP),
                "membership": self._membership(all_arms),
            },
        )

    def _run_arm(self, arm: Arm, global_state: State) -> Checkpoint:
        point = self._records.checkpoint(arm.name) or self._begin(arm, global_state)
        point = replace(point, state=_on(self._config.device, point.state))
        for number in range(1, point.round + 1):
            self._progress.round(arm.name, number, {})
        saved = time.monotonic()
        for number in range(point.round + 1, arm.rounds + 1):
            reply = self._federation.engine.train_round(
                point.state, arm.clients, phase=arm.phase, number=number
            )
            point = Checkpoint(number, aggregate(reply.updates), point.cost + reply.cost)
            self._record(arm, point)
            if number == arm.rounds or time.monotonic() - saved > CHECKPOINT_SECONDS:
                self._save(arm, point)
                saved = time.monotonic()
        if arm.name == FEDAVG:
            self._recall_own_state()
        if arm.name == RETRAIN:
            self._retrained = measure(self._federation, point.state)
        return point

    def _begin(self, arm: Arm, global_state: State) -> Checkpoint:
        start = arm.start(global_state)
        if start.report is not None and arm.name == ASCENT:
            write_json(self._records.path / _LOCAL_STEP, start.report.as_dict())
        point = Checkpoint(0, start.state, start.cost)
        self._record(arm, point)
        self._records.save_checkpoint(arm.name, point)
        return point

    def _record(self, arm: Arm, point: Checkpoint) -> None:
        measured = measure(self._federation, point.state).record(self._retrained)
        if point.round in arm.evidence_rounds:
            found = answers(self._federation, point.state, arm.clients, self._seed)
            states.save(found.tensors(), self._evidence_path(arm.name, point.round))
        self._records.append_row(
            {
                "arm": arm.name,
                "round": point.round,
                "scores": measured,
                "cost": point.cost.as_dict(),
                "digest": states.digest(point.state),
            }
        )
        if point.round:
            self._progress.round(arm.name, point.round, measured)

    def _save(self, arm: Arm, point: Checkpoint) -> None:
        if arm.name == FEDAVG and point.round == arm.rounds:
            own = self._federation.engine.own[self._federation.leaver]
            self._records.save_state(_OWN, own.state, {"weight": repr(own.weight)})
        self._records.save_checkpoint(arm.name, point)

    def _recall_own_state(self) -> None:
        state, metadata = self._records.load_state(_OWN)
        own = OwnState(_on(self._config.device, state), float(metadata["weight"]))
        self._federation.engine.own[self._federation.leaver] = own

    def _membership(self, all_arms: Sequence[Arm]) -> dict[str, object]:
        targets = {
            f"{arm.name}@{number}": self._answers(arm.name, number)
            for arm in all_arms
            for number in sorted(set(arm.evidence_rounds))
        }
        shadow = targets[f"{FEDAVG}@{self._config.training.rounds}"]
        return membership(shadow, targets, self._seed)

    def _answers(self, arm: str, number: int) -> Answers:
        try:
            return Answers.of_tensors(states.load(self._evidence_path(arm, number))[0])
        except (StateError, KeyError) as error:
            raise RecordError(f"{error}; delete {self._records.path} to redo this seed") from error

    def _evidence_path(self, arm: str, number: int) -> Path:
        return self._records.path / "evidence" / f"{arm}@{number}.safetensors"


def _resolved(config: Config) -> dict[str, object]:
    """Return the config as records hold it: no default left open, no path of this machine."""
    values = config.model_dump(mode="json")
    values["scenario"]["share"] = config.share
    if config.data.endswith(".npz"):
        values["data"] = Path(config.data).name
    return values


def _on(device: str, state: State) -> State:
    return {name: value.to(device) for name, value in state.items()}


def _check_same(records: SeedFolder, digest: str) -> None:
    found = read_json(records.path / RESULT).get("config_digest")
    if found != digest:
        raise RecordError(
            f"{records.path} holds another experiment (digest {found}); move it away or use --out"
        )


def _environment(device: str) -> dict[str, object]:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu"
    return {
        "secede": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device,
        "device_name": name,
        "threads": torch.get_num_threads(),
    }
