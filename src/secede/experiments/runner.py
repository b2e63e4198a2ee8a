"""Runs experiments: seeds side by side, arm by arm, round by round; goes on where a kill left it.

Every arm is a start state and rounds of FedAvg from there: everybody's training, retraining, and
each method's post-training. Plain post-training rounds draw the same batches in every arm. Rounds
are recorded while the next ones train; a method that destroys the model is told and left out.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from importlib import metadata, util
from pathlib import Path

import torch

from secede import __version__
from secede import state as states
from secede.data.samples import Dataset
from secede.errors import RecordError
from secede.experiments import config as configs
from secede.experiments.arms import arms
from secede.experiments.config import Config
from secede.experiments.fingerprint import fingerprints, own_source
from secede.experiments.parallel import lane_count, take_turns
from secede.experiments.progress import Progress
from secede.experiments.recorder import Recorder
from secede.experiments.records import (
    CONFIG,
    ENVIRONMENT,
    RESULT,
    SeedFolder,
    read_json,
    run_folder,
    write_json,
)
from secede.experiments.seed_run import SeedRun
from secede.experiments.setup import (
    Federation,
    federate,
    load_dataset,
    make_deterministic,
    resolve_device,
)
from secede.federation.executors import AUTO
from secede.federation.executors.choose import MIN_STACKED_CLIENTS, Choice
from secede.unlearning.update_history import UpdateHistory


def run(
    config: Config,
    seeds: Sequence[int],
    runs: Path,
    progress: Progress,
    *,
    search: Path | None = None,
    lanes: int | None = None,
) -> Path:
    """Run `config` for every seed that is not finished yet and return the run's folder."""
    return run_all([config], seeds, runs, progress, search=search, lanes=lanes)[0]


def run_all(
    experiments: Sequence[Config],
    seeds: Sequence[int],
    runs: Path,
    progress: Progress,
    *,
    search: Path | None = None,
    lanes: int | None = None,
) -> list[Path]:
    """Run every config for every seed, several at once, and return the runs' folders.

    `lanes` are threads that take the seeds in turn; None opens as many as the device bears. The
    records do not depend on it, except for the seconds.
    """
    cells = [_Cell(config, runs, search) for config in experiments]
    distinct = {cell.folder: cell for cell in cells}.values()
    # Seed by seed, so that a run cut short has every cell as often.
    turns = [(cell, seed) for seed in seeds for cell in distinct]
    left = [(cell, seed) for cell, seed in turns if not cell.finished(seed)]
    device = "cuda" if any(cell.config.device == "cuda" for cell in distinct) else "cpu"
    if len({cell.config.precision for cell in distinct}) > 1:
        lanes = 1  # TF32 is a switch of the whole process
    lanes = lane_count(len(left), device, lanes)
    progress.expect(len(turns), lanes)
    for cell, seed in turns:
        if (cell, seed) not in left:
            progress.reused(cell.config, seed)
    workshop = _Workshop([cell for cell, _ in left])

    def take(turn: tuple[_Cell, int], stop: threading.Event) -> None:
        cell, seed = turn
        make_deterministic(cell.config.precision)
        federation = workshop.federate(cell, seed)
        records = SeedFolder(cell.folder / f"seed-{seed}")
        history = _history(cell.config, federation, records.path)
        all_arms = arms(cell.config, federation, history=history, search=cell.search)
        write_json(cell.folder / CONFIG, _resolved(cell.config))
        with records.locked(), Recorder(cell.config.device) as recorder:
            records.begin(_environment(cell.config, federation, lanes))
            records.drop_rows_beyond_checkpoints()
            told = progress.begin(cell.config, seed, sum(arm.rounds for arm in all_arms))
            SeedRun(
                cell.config, cell.digest, seed, federation, history, records, recorder, told, stop
            ).run(all_arms)
            told.end()

    take_turns(left, take, lanes=lanes, device=device)
    return [cell.folder for cell in cells]


class _Cell:
    """One config with what all its seeds share."""

    def __init__(self, config: Config, runs: Path, search: Path | None) -> None:
        self.config = configs.override(config, {"device": resolve_device(config.device)})
        self.digest = configs.digest(self.config, fingerprints(self.config, search))
        self.folder = run_folder(runs, config.name, self.digest)
        self.search = search
        self.data = (config.data, config.limit)
        # What federations must have in common to share an executor.
        self.work = (
            self.data,
            config.model,
            search,
            config.training.model_copy(update={"rounds": 1}),
            config.executor,
            config.precision,
            config.clients.count < MIN_STACKED_CLIENTS,
        )

    def finished(self, seed: int) -> bool:
        """Whether `seed` has its result; one of another experiment is refused."""
        records = SeedFolder(self.folder / f"seed-{seed}")
        if records.finished:
            _check_same(records, self.digest)
            _check_computed_by(records, self.config.executor)
        return records.finished


class _Workshop:
    """Builds federations one at a time; those that do the same work share an executor.

    A data set is kept until its last turn has it.
    """

    def __init__(self, turns: Sequence[_Cell]) -> None:
        self._left = Counter(cell.data for cell in turns)
        self._datasets: dict[tuple[str, int | None], Dataset] = {}
        self._choices: dict[Hashable, Choice] = {}
        self._lock = threading.Lock()

    def federate(self, cell: _Cell, seed: int) -> Federation:
        """Return the federation of one turn."""
        with self._lock:
            if cell.data not in self._datasets:
                self._datasets[cell.data] = load_dataset(cell.config)
            dataset = self._datasets[cell.data]
            choice = self._choices.get(cell.work)
            federation = federate(cell.config, dataset, seed, search=cell.search, choice=choice)
            self._choices[cell.work] = federation.engine.choice
            self._left[cell.data] -= 1
            if not self._left[cell.data]:
                del self._datasets[cell.data]
        return federation


def _history(config: Config, federation: Federation, folder: Path) -> UpdateHistory | None:
    how = config.situation
    if not how.history:
        return None
    history = UpdateHistory(
        folder / "history",
        interval=how.history_interval,
        limit_bytes=int(how.history_limit_gb * 1e9),
    )
    history.check_fits(
        state_bytes=states.size_bytes(federation.engine.initial_state("initial")),
        clients=len(federation.everyone),
        rounds=config.training.rounds,
    )
    return history


def _resolved(config: Config) -> dict[str, object]:
    """Return the config as records hold it: no default left open, no path of this machine."""
    values = config.model_dump(mode="json")
    values["scenario"]["share"] = config.share
    if config.data.endswith(".npz"):
        values["data"] = Path(config.data).name
    return values


def _check_same(records: SeedFolder, digest: str) -> None:
    found = read_json(records.path / RESULT).get("config_digest")
    if found != digest:
        raise RecordError(
            f"{records.path} holds another experiment (digest {found}); move it away or use --out"
        )


def _check_computed_by(records: SeedFolder, executor: str) -> None:
    found = read_json(records.path / ENVIRONMENT).get("executor")
    if executor not in (AUTO, found):
        raise RecordError(
            f"{records.path} is finished and was computed by executor {found!r}, not {executor!r}; "
            "leave --executor out, or use another --out to compute it again"
        )


def _gpu_libraries() -> dict[str, object]:
    """Return the versions that decide how a GPU rounds."""
    triton = util.find_spec("triton") and metadata.version("triton")
    cudnn = torch.backends.cudnn.version()
    return {"cuda": torch.version.cuda, "cudnn": cudnn, "triton": triton}


def _environment(config: Config, federation: Federation, lanes: int) -> dict[str, object]:
    device = config.device
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu"
    return {
        "secede": __version__,
        "source": own_source(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **(_gpu_libraries() if device == "cuda" else {}),
        "device": device,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "executor": federation.engine.choice.name,
        "executor_note": federation.engine.choice.note,
        "precision": config.precision,
        "lanes": lanes,
    }
