"""Run experiments: seeds side by side, arm by arm, round by round; resume after a kill.

Every arm is a start state and rounds of FedAvg from there: everybody's training, retraining, and
each method's post-training. Plain post-training rounds draw the same batches in every arm. Rounds
are recorded while the next ones train. A method that destroys the model is reported and left out.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from secede.errors import RecordError
from secede.experiments import config as configs
from secede.experiments.arms import arms, create_history
from secede.experiments.config import Config
from secede.experiments.fingerprint import describe_environment, fingerprints
from secede.experiments.parallel import lane_count, run_jobs
from secede.experiments.records import (
    CONFIG,
    ENVIRONMENT,
    RESULT,
    SeedFolder,
    read_json,
    run_folder,
    write_json,
)
from secede.experiments.seed_run import SeedProgress, SeedRun
from secede.experiments.setup import FederationBuilder, make_deterministic, resolve_device
from secede.federation.executors import AUTO


class Progress(Protocol):
    """Reports the progress of all runs; called from several threads."""

    def expect(self, seeds: int, lanes: int) -> None:
        """Announce how many seeds run in how many lanes; finished ones are counted too."""

    def begin(self, config: Config, seed: int, rounds: int) -> SeedProgress:
        """Report that a seed starts or resumes, with this many rounds in all."""

    def reused(self, config: Config, seed: int) -> None:
        """Report that a seed was finished before."""


def run(
    experiments: Sequence[Config],
    seeds: Sequence[int],
    runs: Path,
    progress: Progress,
    *,
    search: Path | None = None,
    lanes: int | None = None,
) -> list[Path]:
    """Run every config for every seed that is not finished, and return the runs' folders.

    `lanes` are threads that run the seeds; None opens as many as suit the device. The records do
    not depend on it, except for the seconds.
    """
    cells = [_Cell(config, runs, search) for config in experiments]
    distinct = {cell.folder: cell for cell in cells}.values()
    # Seed by seed, so that a run cut short has every cell as often.
    jobs = [(cell, seed) for seed in seeds for cell in distinct]
    unfinished = [(cell, seed) for cell, seed in jobs if not cell.finished(seed)]
    device = "cuda" if any(cell.config.device == "cuda" for cell in distinct) else "cpu"
    if len({cell.config.precision for cell in distinct}) > 1:
        lanes = 1  # TF32 is a switch of the whole process
    lanes = lane_count(len(unfinished), device, lanes)
    progress.expect(len(jobs), lanes)
    for cell, seed in jobs:
        if (cell, seed) not in unfinished:
            progress.reused(cell.config, seed)
    builder = FederationBuilder([cell.config for cell, _ in unfinished])

    def run_seed(job: tuple[_Cell, int], stop: threading.Event) -> None:
        cell, seed = job
        config = cell.config
        make_deterministic(config.precision)
        federation = builder.build(config, seed, search)
        records = SeedFolder(cell.folder / f"seed-{seed}")
        history = create_history(config, federation, records.path / "history")
        all_arms = arms(config, federation, history=history, search=search)
        write_json(cell.folder / CONFIG, config.resolved())
        with records.locked():
            executor = federation.engine.choice
            environment = describe_environment(config, executor.name, executor.note, lanes)
            records.write_environment(environment)
            records.drop_rows_beyond_checkpoints()
            seed_progress = progress.begin(config, seed, sum(arm.rounds for arm in all_arms))
            SeedRun(
                config,
                cell.digest,
                seed,
                federation,
                history,
                records,
                seed_progress,
                stop,
            ).run(all_arms)
            seed_progress.end()

    run_jobs(unfinished, run_seed, lanes=lanes, device=device)
    return [cell.folder for cell in cells]


class _Cell:
    """One config with its digest and its folder."""

    def __init__(self, config: Config, runs: Path, search: Path | None) -> None:
        self.config = configs.override(config, {"device": resolve_device(config.device)})
        self.digest = configs.digest(self.config, fingerprints(self.config, search))
        self.folder = run_folder(runs, config.name, self.digest)

    def finished(self, seed: int) -> bool:
        """Return whether `seed` has its result; raise if that is of another experiment."""
        records = SeedFolder(self.folder / f"seed-{seed}")
        if records.finished:
            _check_same(records, self.digest)
            _check_executor(records, self.config.executor)
        return records.finished


def _check_same(records: SeedFolder, digest: str) -> None:
    recorded = read_json(records.path / RESULT).get("config_digest")
    if recorded != digest:
        raise RecordError(
            f"{records.path} holds another experiment (digest {recorded}); move it away or use "
            "--out"
        )


def _check_executor(records: SeedFolder, executor: str) -> None:
    recorded = read_json(records.path / ENVIRONMENT).get("executor")
    if executor not in (AUTO, recorded):
        raise RecordError(
            f"{records.path} is finished and was computed by executor {recorded!r}, not "
            f"{executor!r}; leave --executor out, or use another --out to compute it again"
        )
