"""Run an audit: federations side by side, each trained, asked and recorded; resume after a kill.

A finished federation is never trained again: more of them join the ones that are there, and scores
are computed anew without training. Every lane computes with one thread, so that the records do not
depend on how many lanes there are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from secede.audit.ensembles.margins import Ensembles
from secede.errors import ConfigError
from secede.experiments import config as configs
from secede.experiments.config import Config
from secede.experiments.ensembles import members
from secede.experiments.ensembles.material import gather
from secede.experiments.ensembles.options import AuditOptions, audit_digest
from secede.experiments.ensembles.train import Job, train
from secede.experiments.fingerprint import describe_environment, fingerprints
from secede.experiments.parallel import lane_count, run_jobs, use_cores
from secede.experiments.records import ENVIRONMENT, SeedFolder, read_json, run_folder, write_json
from secede.experiments.setup import load_dataset, make_deterministic, resolve_device
from secede.federation.executors.cpu import core_count

AUDIT = "audit.json"
MIN_MODELS = 4  # of each kind: with fewer nothing can be told


class FederationProgress(Protocol):
    """Reports the progress of one federation."""

    def round(self, phase: str) -> None:
        """Report a round that was trained, and what it is part of."""

    def end(self, seconds: float) -> None:
        """Report that the federation is finished."""


class Progress(Protocol):
    """Reports the progress of an audit; called from several threads."""

    def expect(self, federations: int, finished: int, lanes: int) -> None:
        """Announce how many federations there will be, and how many there are."""

    def begin(self, number: int, rounds: int) -> FederationProgress:
        """Report that a federation starts, with this many rounds in all."""


@dataclass(frozen=True)
class Audit:
    """A finished audit: its folder, its ensembles by variant, and what was done."""

    folder: Path
    config: Config
    options: AuditOptions
    digest: str
    ensembles: dict[str, Ensembles]
    notes: list[dict[str, Any]]  # of each federation
    environment: dict[str, Any]


def run_audit(
    config: Config,
    options: AuditOptions,
    models: int,
    runs: Path,
    progress: Progress,
    *,
    search: Path | None = None,
    lanes: int | None = None,
) -> Audit:
    """Train the federations of an audit that are not finished, and return its ensembles."""
    if models < MIN_MODELS:
        raise ConfigError(f"{models} models of each kind, expected {MIN_MODELS} or more")
    device = resolve_device(config.device)
    only = {"device": device, "methods": config.methods[:1]}
    config = configs.override(config, only)
    digest = audit_digest(config, fingerprints(config, search), options)
    folder = run_folder(runs, f"audit {config.name}", digest)
    unfinished = [n for n in range(models) if not members.is_finished(folder, n)]
    default = core_count() if device == "cpu" else None
    lanes = lane_count(len(unfinished), device, lanes or default)
    progress.expect(models, models - len(unfinished), lanes)
    if unfinished:
        with SeedFolder(folder).locked():
            _train(config, options, digest, folder, unfinished, progress, search, lanes)
    return Audit(
        folder=folder,
        config=config,
        options=options,
        digest=digest,
        ensembles=members.load(folder, digest, models),
        notes=members.notes(folder, digest, models),
        environment=read_json(folder / ENVIRONMENT),
    )


def _train(
    config: Config,
    options: AuditOptions,
    digest: str,
    folder: Path,
    numbers: list[int],
    progress: Progress,
    search: Path | None,
    lanes: int,
) -> None:
    """Train the federations `numbers` and write each down."""
    make_deterministic(config.precision)
    with _one_thread():
        material = gather(config, load_dataset(config), options.seed)
        job = Job(config=config, options=options, material=material, search=search)
        job = replace(job, choice=job.simulator(0, material.member(0)).choice)
        _write_down(job, digest, folder, lanes)

        def run_one(number: int, stop: threading.Event) -> None:
            started = time.monotonic()
            reporter = progress.begin(number, job.rounds())
            done = train(job, number, folder / "history" / str(number), stop, reporter.round)
            members.write(folder, digest, done)
            reporter.end(time.monotonic() - started)

        run_jobs(numbers, run_one, lanes=lanes, device=config.device)


def _write_down(job: Job, digest: str, folder: Path, lanes: int) -> None:
    """Record what the audit is of; raise if it was begun in another environment."""
    name, note = (job.choice.name, job.choice.note) if job.choice else ("", "")
    environment = describe_environment(job.config, name, note, lanes)
    SeedFolder(folder).write_environment(environment)
    audit = {
        "audit": digest,
        "config": job.config.resolved(),
        "options": asdict(job.options),
        "pool": len(job.material.pool),
        "dealt": job.material.dealt,
    }
    write_json(folder / AUDIT, audit)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let this thread, and those that it starts, compute with one thread each."""
    before = torch.get_num_threads()
    use_cores(1)
    try:
        yield
    finally:
        use_cores(before)
