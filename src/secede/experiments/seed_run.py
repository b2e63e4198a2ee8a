"""Run one seed of an experiment: arm by arm, round by round, each recorded while the next trains.

All arms after FedAvg start from its end: there a client's own state is the one that it had when
training ended, and nothing of another arm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from secede import state as states
from secede.errors import RecordError, StateError
from secede.experiments.arms import FEDAVG, RETRAIN, RETRAIN_AGAIN, TRAINING, Arm
from secede.experiments.background_writer import BackgroundWriter
from secede.experiments.config import Config
from secede.experiments.measure import AttackInputs, Examiner, Measured, membership
from secede.experiments.parallel import Stopped
from secede.experiments.records import (
    RESULT,
    Checkpoint,
    SeedFolder,
    read_json,
    write_json,
)
from secede.experiments.setup import (
    Federation,
)
from secede.federation.engine import OwnState
from secede.state import State
from secede.unlearning import UpdateHistory
from secede.unlearning import update_history as histories

CHECKPOINT_SECONDS = 5.0
_OWN = "leaver-own"
_BEFORE_LAST = "before-last"  # the state before FedAvg's last round, until the seed ends
_REPORTS, _HISTORY = "reports.json", "history.json"


class SeedProgress(Protocol):
    """Reports the progress of one seed; called from the thread that records it."""

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        """Report a round of an arm that was run, or was recorded before."""

    def end(self) -> None:
        """Report that the seed is finished."""


class SeedRun:
    """One seed in progress; its records are written while rounds train."""

    def __init__(
        self,
        config: Config,
        config_digest: str,
        seed: int,
        federation: Federation,
        history: UpdateHistory | None,
        records: SeedFolder,
        progress: SeedProgress,
        stop: threading.Event,
    ) -> None:
        self._config, self._digest, self._seed = config, config_digest, seed
        self._federation, self._examiner = federation, Examiner(federation, seed)
        self._records, self._history = records, history
        self._writer = BackgroundWriter(config.device)
        if history is not None:
            history.submit = self._writer.submit
        self._progress, self._stop = progress, stop
        self._retrained: Measured | None = None  # the arms after retraining are compared with it

    def run(self, all_arms: Sequence[Arm]) -> None:
        """Run all arms, attack their models, and write the result."""
        with self._writer:
            self._run(all_arms)

    def _run(self, all_arms: Sequence[Arm]) -> None:
        final: dict[str, State] = {}
        seconds: dict[str, float] = {}
        failed: dict[str, str] = {}
        for arm in all_arms:
            try:
                end = self._run_arm(arm, final.get(FEDAVG, {}))
            except StateError as error:
                if arm.name in (FEDAVG, RETRAIN, RETRAIN_AGAIN, self._config.methods[0]):
                    raise
                failed[arm.name] = str(error)  # it destroyed the model; the other arms go on
                continue
            final[arm.name], seconds[arm.name] = end.state, end.cost.seconds
        self._writer.drain()
        self._records.drop_arms(failed)
        if self._history is not None:
            self._history.delete()
        self._records.drop_state(_BEFORE_LAST)
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
                "history": self._history_summary(),
                "membership": self._membership([a for a in all_arms if a.name in final]),
            },
        )

    def _run_arm(self, arm: Arm, global_state: State) -> Checkpoint:
        point = self._records.checkpoint(arm.name) or self._begin(arm, global_state)
        on = partial(_to_device, self._config.device)
        point = replace(point, state=on(point.state), memory=on(point.memory))
        for number in range(1, point.round + 1):
            self._progress.round(arm.name, number, {})
        saved = time.monotonic()
        for number in range(point.round + 1, arm.rounds + 1):
            before = point.state
            after = arm.advance(global_state, before, point.memory, number)
            point = Checkpoint(number, after.state, point.cost + after.cost, after.memory)
            stopped = self._stop.is_set()
            due = stopped or time.monotonic() - saved > CHECKPOINT_SECONDS
            if arm.name == FEDAVG and number == arm.rounds:
                self._submit_own_states(before)
            self._submit(arm, point, save=due or number == arm.rounds)
            if stopped:
                self._writer.drain()
                raise Stopped
            if due:
                saved = time.monotonic()
        if arm.name == FEDAVG:
            self._writer.drain()
            self._restore_own_states()
            self._record_history(point.round)
        if arm.name == RETRAIN:
            self._writer.submit(partial(self._compare_with, point.state))
        return point

    def _begin(self, arm: Arm, global_state: State) -> Checkpoint:
        start = arm.start(global_state)
        self._check_outputs(arm, start.state)
        point = Checkpoint(0, start.state, start.cost, start.memory)
        self._submit(arm, point, report=start.report, save=True)
        return point

    def _check_outputs(self, arm: Arm, state: State) -> None:
        """Raise if a start destroyed the model: here it ends the arm, in the writer the seed."""
        states.check_finite(state, f"the start of {arm.name}")
        model = self._federation.engine.fresh_model("template")  # the writer has its own
        states.load_into(model, state)
        with torch.inference_mode():
            outputs = model.eval()(self._federation.test.x[:64])
        if not bool(outputs.isfinite().all()):
            raise StateError(f"the start of {arm.name} answers with numbers that are not finite")

    def _submit(
        self,
        arm: Arm,
        point: Checkpoint,
        *,
        report: Mapping[str, object] | None = None,
        save: bool,
    ) -> None:
        """Submit `point` to the writer, with the history's sums of the same round."""
        history = self._history if arm.name == FEDAVG and save and point.round else None
        sums = None if history is None else history.sums

        def write() -> None:
            if report is not None:
                path = self._records.path / _REPORTS
                write_json(path, {**self._reports(), arm.name: report})
            self._record(arm, point)
            if history is not None and sums is not None:
                history.save_sums(sums)
            if save:
                self._records.save_checkpoint(arm.name, point)
            if history is not None:
                history.delete_other_sums(point.round)

        self._writer.submit(write)

    def _submit_own_states(self, before: State) -> None:
        """Submit the states from which the clients' own states are restored after a kill."""
        own = self._federation.engine.own[self._federation.leaver]

        def write() -> None:
            self._records.save_state(_OWN, own.state, {"weight": repr(own.weight)})
            self._records.save_state(_BEFORE_LAST, before, {})

        self._writer.submit(write)

    def _record(self, arm: Arm, point: Checkpoint) -> None:
        examined = self._examiner.examine(point.state)
        scores = self._examiner.measure(examined).to_record(self._retrained)
        canaries = self._examiner.read_canaries(examined)
        said = {} if canaries is None else {"canaries": canaries}
        if point.round in arm.evidence_rounds:
            inputs = self._examiner.attack_inputs(examined, arm.clients)
            states.save(inputs.to_tensors(), self._evidence_path(arm.name, point.round))
        canaries = self._examiner.read_canaries(examined)
        self._records.append_row(
            {
                "arm": arm.name,
                "round": point.round,
                "scores": scores,
                **said,
                "cost": point.cost.as_dict(),
                "digest": states.digest(point.state),
                **({} if canaries is None else {"canaries": canaries}),
            }
        )
        if point.round:
            self._progress.round(arm.name, point.round, scores)

    def _compare_with(self, retrained: State) -> None:
        self._retrained = self._examiner.measure(self._examiner.examine(retrained))

    def _restore_own_states(self) -> None:
        """Give every client its own state from the end of training, and keep it there."""
        engine, everyone = self._federation.engine, self._federation.everyone
        # Where that state is gone, all arms have ended, and no client is needed any more.
        if len(engine.own) < len(everyone) and self._records.has_state(_BEFORE_LAST):
            before = _to_device(self._config.device, self._records.load_state(_BEFORE_LAST)[0])
            engine.train_round(
                before, everyone, phase=TRAINING, number=self._config.training.rounds
            )
        state, metadata = self._records.load_state(_OWN)
        own = OwnState(_to_device(self._config.device, state), float(metadata["weight"]))
        engine.own[self._federation.leaver] = own
        engine.remembers = False

    def _reports(self) -> dict[str, object]:
        """Return what methods have reported of their starts so far."""
        path = self._records.path / _REPORTS
        return read_json(path) if path.exists() else {}

    def _record_history(self, last: int) -> None:
        """Record the size of the history, before the seed's end deletes it."""
        path = self._records.path / _HISTORY
        if self._history is not None and not path.exists():
            # A kill may have come between the checkpoint and this.
            self._history.delete_other_sums(last)
            size = {"bytes": self._history.size_bytes, "rounds": len(self._history.rounds)}
            write_json(path, {**size, "privacy": histories.PRIVACY})

    def _history_summary(self) -> dict[str, object] | None:
        path = self._records.path / _HISTORY
        return read_json(path) if path.exists() else None

    def _membership(self, all_arms: Sequence[Arm]) -> dict[str, object]:
        targets = {
            f"{arm.name}@{number}": self._attack_inputs(arm.name, number)
            for arm in all_arms
            for number in sorted(set(arm.evidence_rounds))
        }
        shadow = targets[f"{FEDAVG}@{self._config.training.rounds}"]
        return membership(shadow, targets, self._seed)

    def _attack_inputs(self, arm: str, number: int) -> AttackInputs:
        try:
            return AttackInputs.from_tensors(states.load(self._evidence_path(arm, number))[0])
        except (StateError, KeyError) as error:
            raise RecordError(f"{error}; delete {self._records.path} to redo this seed") from error

    def _evidence_path(self, arm: str, number: int) -> Path:
        return self._records.path / "evidence" / f"{arm}@{number}.safetensors"


def _to_device(device: str, state: State) -> State:
    return {name: value.to(device) for name, value in state.items()}
