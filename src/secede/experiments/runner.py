"""Runs experiments: seeds side by side, arm by arm, round by round; goes on where a kill left it.

Every arm is a start state and rounds of FedAvg from there: everybody's training, retraining, and
each method's post-training. Plain post-training rounds draw the same batches in every arm. Rounds
are recorded while the next ones train; a method that destroys the model is told and left out.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Protocol

import torch

from secede import __version__
from secede import state as states
from secede.data.samples import Dataset
from secede.errors import RecordError, StateError
from secede.experiments import config as configs
from secede.experiments.arms import FEDAVG, RETRAIN, Arm, arms
from secede.experiments.config import Config
from secede.experiments.fingerprint import fingerprints
from secede.experiments.lanes import Stopped, lane_count, take_turns
from secede.experiments.measure import Answers, Examiner, Measured, membership
from secede.experiments.recorder import Recorder
from secede.experiments.records import (
    CONFIG,
    ENVIRONMENT,
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
from secede.federation.engine import OwnState
from secede.federation.executors import AUTO
from secede.federation.executors.choose import MINIMUM_STACKED, Choice
from secede.state import State
from secede.unlearning import history as histories
from secede.unlearning.history import History

CHECKPOINT_SECONDS = 5.0
_OWN = "leaver-own"
_REPORTS, _HISTORY = "reports.json", "history.json"


class TurnProgress(Protocol):
    """Is told how one seed goes, from the thread that records it."""

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        """A round of an arm is done, or was found done."""

    def end(self) -> None:
        """The seed is finished."""


class Progress(Protocol):
    """Is told how runs go, from several threads; the command line draws it."""

    def expect(self, turns: int, lanes: int) -> None:
        """So many seeds come, in so many lanes; those found finished are among them."""

    def begin(self, config: Config, seed: int, rounds: int) -> TurnProgress:
        """A seed starts or goes on, with this many rounds in all."""

    def reused(self, config: Config, seed: int) -> None:
        """A seed was found finished."""


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
    turns = [(cell, seed) for cell in distinct for seed in seeds]
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
            _SeedRun(cell, seed, federation, history, records, recorder, told, stop).run(all_arms)
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
            config.clients.count < MINIMUM_STACKED,
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


class _SeedRun:
    """One seed in progress; what it writes, the recorder writes while rounds train."""

    def __init__(
        self,
        cell: _Cell,
        seed: int,
        federation: Federation,
        history: History | None,
        records: SeedFolder,
        recorder: Recorder,
        progress: TurnProgress,
        stop: threading.Event,
    ) -> None:
        self._config, self._digest, self._seed = cell.config, cell.digest, seed
        self._federation, self._examiner = federation, Examiner(federation, seed)
        self._records, self._recorder, self._history = records, recorder, history
        self._progress, self._stop = progress, stop
        self._retrained: Measured | None = None  # what the arms after retraining compare with

    def run(self, all_arms: Sequence[Arm]) -> None:
        """Run all arms, attack their models, and write the result."""
        final: dict[str, State] = {}
        seconds: dict[str, float] = {}
        failed: dict[str, str] = {}
        for arm in all_arms:
            try:
                end = self._run_arm(arm, final.get(FEDAVG, {}))
            except StateError as error:
                if arm.name in (FEDAVG, RETRAIN, self._config.methods[0]):
                    raise
                failed[arm.name] = str(error)  # it destroyed the model; the others go on
                continue
            final[arm.name], seconds[arm.name] = end.state, end.cost.seconds
        self._recorder.drain()
        self._records.drop_arms(failed)
        if self._history is not None:
            self._history.delete()
        write_json(
            self._records.path / RESULT,
            {
                "seed": self._seed,
                "config_digest": self._digest,
                "seconds": sum(seconds.values()),
                "arms": {
                    arm.name: {"rounds": arm.rounds, "digest": states.digest(final[arm.name])}
                    for arm in all_arms
                    if arm.name in final
                },
                "failed": failed,
                "reports": self._reports(),
                "history": self._kept(),
                "membership": self._membership(all_arms),
            },
        )

    def _run_arm(self, arm: Arm, global_state: State) -> Checkpoint:
        point = self._records.checkpoint(arm.name) or self._begin(arm, global_state)
        on = partial(_on, self._config.device)
        point = replace(point, state=on(point.state), memory=on(point.memory))
        for number in range(1, point.round + 1):
            self._progress.round(arm.name, number, {})
        saved = time.monotonic()
        # A history's sums lie on the disk until a checkpoint covers them.
        keeps = self._history is not None and arm.name == FEDAVG
        for number in range(point.round + 1, arm.rounds + 1):
            after = arm.advance(global_state, point.state, point.memory, number)
            point = Checkpoint(number, after.state, point.cost + after.cost, after.memory)
            stopped = self._stop.is_set()
            due = stopped or keeps or time.monotonic() - saved > CHECKPOINT_SECONDS
            self._submit(arm, point, save=due or number == arm.rounds)
            if stopped:
                self._recorder.drain()
                raise Stopped
            if due:
                saved = time.monotonic()
        if arm.name == FEDAVG:
            self._recorder.drain()
            self._recall_own_state()
            self._weigh_history()
        if arm.name == RETRAIN:
            self._recorder.submit(partial(self._compare_with, point.state))
        return point

    def _begin(self, arm: Arm, global_state: State) -> Checkpoint:
        start = arm.start(global_state)
        self._check_answers(arm, start.state)
        point = Checkpoint(0, start.state, start.cost, start.memory)
        self._submit(arm, point, report=start.report, save=True)
        return point

    def _check_answers(self, arm: Arm, state: State) -> None:
        """Raise if a start is destroyed: found here, it ends the arm and not the recorder."""
        states.check_finite(state, f"the start of {arm.name}")
        model = self._federation.engine.fresh_model("template")  # not the recorder's
        states.load_into(model, state)
        with torch.inference_mode():
            answers = model.eval()(self._federation.test.x[:64])
        if not bool(answers.isfinite().all()):
            raise StateError(f"the start of {arm.name} answers with numbers that are not finite")

    def _submit(
        self,
        arm: Arm,
        point: Checkpoint,
        *,
        report: Mapping[str, object] | None = None,
        save: bool,
    ) -> None:
        """Have the recorder keep `point`, and the leaver's own state after the last training."""
        last = arm.name == FEDAVG and point.round == arm.rounds
        own = self._federation.engine.own[self._federation.leaver] if last else None

        def keep() -> None:
            if report is not None:
                path = self._records.path / _REPORTS
                write_json(path, {**self._reports(), arm.name: report})
            self._record(arm, point)
            if own is not None:
                self._records.save_state(_OWN, own.state, {"weight": repr(own.weight)})
            if save:
                self._records.save_checkpoint(arm.name, point)
                if self._history is not None and arm.name == FEDAVG:
                    self._history.settle(point.round)

        self._recorder.submit(keep)

    def _record(self, arm: Arm, point: Checkpoint) -> None:
        examined = self._examiner.examine(point.state)
        measured = self._examiner.measure(examined).record(self._retrained)
        if point.round in arm.evidence_rounds:
            found = self._examiner.answers(examined, arm.clients)
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

    def _compare_with(self, retrained: State) -> None:
        self._retrained = self._examiner.measure(self._examiner.examine(retrained))

    def _recall_own_state(self) -> None:
        state, metadata = self._records.load_state(_OWN)
        own = OwnState(_on(self._config.device, state), float(metadata["weight"]))
        self._federation.engine.own[self._federation.leaver] = own

    def _reports(self) -> dict[str, object]:
        """Return what methods have told of their starts so far."""
        path = self._records.path / _REPORTS
        return read_json(path) if path.exists() else {}

    def _weigh_history(self) -> None:
        """Write down what was kept, before the seed's end deletes it."""
        path = self._records.path / _HISTORY
        if self._history is not None and not path.exists():
            kept = {"bytes": self._history.size_bytes, "rounds": len(self._history.rounds)}
            write_json(path, {**kept, "privacy": histories.PRIVACY})

    def _kept(self) -> dict[str, object] | None:
        path = self._records.path / _HISTORY
        return read_json(path) if path.exists() else None

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


def _history(config: Config, federation: Federation, folder: Path) -> History | None:
    how = config.situation
    if not how.history:
        return None
    history = History(
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


def _on(device: str, state: State) -> State:
    return {name: value.to(device) for name, value in state.items()}


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
