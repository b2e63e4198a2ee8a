"""The server's home beside a run: checks and wishes before it, and an erasure's result after it.

Mistakes end a command at once, with one line. What an operator asks for is written into the home,
where the app finds it without further code. A result is verified whenever it is read.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from secede.erasure import (
    MAX_RECEIPT_BYTES,
    PROMOTED,
    Entry,
    Home,
    Journal,
    ModelRegistry,
    Progress,
    lock_home,
    read_bounded,
    verify_receipt,
)
from secede.errors import ConfigError, RecordError, RolledBackError
from secede.flower.protocol.nodes import select
from secede.flower.storage import RoundLog, TrainingState

logger = logging.getLogger(__name__)

ROUNDS = 3


@dataclass(frozen=True)
class PlannedTraining:
    """A training that can be started: how many rounds, and where it begins."""

    rounds: int
    description: str


def count_rounds(folder: Path) -> int:
    """Return how many rounds a home has recorded; an unfinished line is none."""
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def plan_training(
    folder: Path, rounds: int | None, *, from_scratch: bool, resume: bool = False
) -> PlannedTraining:
    """Return the training that a run will do.

    Without `rounds` it has as many as the one that was cut short, else 3. `resume` cancels a
    requested training from scratch.
    """
    trainings = TrainingState(folder)
    if resume:
        with lock_home(Home(folder), 90, purpose="cancelling a training from scratch"):
            if trainings.cancel_from_scratch():
                logger.info("the requested training from scratch is cancelled")
    if not from_scratch:
        length = rounds or trainings.planned_rounds() or ROUNDS
        return PlannedTraining(length, trainings.plan_start(length).description)
    length = rounds or ROUNDS
    start = trainings.plan_start(length, from_scratch=True)
    if RoundLog(folder / "rounds.jsonl").last() is not None:
        with lock_home(Home(folder), 90, purpose="requesting a training from scratch"):
            trainings.request_from_scratch(length)
    return PlannedTraining(length, start.description)


def check_leaver(folder: Path, leaver: str) -> None:
    """Raise if nothing was trained yet, or if `leaver` does not select exactly one client."""
    log = RoundLog(folder / "rounds.jsonl")
    if log.last() is None:
        raise ConfigError(
            f"{folder} holds no completed round, there is nothing to erase from: secede flower "
            f"train {folder.parent} first"
        )
    select(leaver, log.clients())


def prepare_erasure(folder: Path, leaver: str, *, accept_unfinished: bool) -> None:
    """Raise if no run can erase `leaver`; `accept_unfinished` accepts one that was cut short.

    The acceptance is written to the home, so make all other checks before.
    """
    check_leaver(folder, leaver)
    trainings = TrainingState(folder)
    unfinished = trainings.unfinished()
    if unfinished is not None and accept_unfinished:
        training, done = unfinished
        logger.info(
            "the training that was cut short is accepted as it is, "
            f"{done} of {training.rounds} rounds"
        )
        with lock_home(Home(folder), 90, purpose="accepting an unfinished training"):
            trainings.accept_unfinished()
    trainings.check_finished()


@dataclass(frozen=True, kw_only=True)
class ErasureResult:
    """An erased client, and the evidence."""

    client: str
    method: str
    rung: str
    model: str  # digest of the model that serves since then
    receipt: str
    page: str
    promoted: str  # when that model went into service


def last_request(folder: Path, leaver: str) -> Entry | None:
    """Return the last request to erase `leaver`, None if there is none."""
    requests = _requests(folder, leaver)
    return requests[-1] if requests else None


def verified_result(folder: Path, leaver: str) -> ErasureResult:
    """Return the result of erasing `leaver`, with its receipt verified against the ledger.

    LossError if a person must accept first what retraining lost.
    """
    entry = last_request(folder, leaver)
    if entry is None:
        raise RecordError(f"{folder} has no request to erase {leaver}")
    if entry.state != PROMOTED:
        with Journal(Home(folder).journal, read_only=True) as journal:
            Progress.read(journal, entry).check_decided()
        raise RolledBackError(f"{entry.client} was not erased: {entry.state}")
    return _verified(Home(folder), entry)


def earlier_result(folder: Path, leaver: str) -> ErasureResult | None:
    """Return the verified result if `leaver` is erased; None if not, or if it takes part again."""
    promoted = [entry for entry in _requests(folder, leaver) if entry.state == PROMOTED]
    if not promoted:
        return None
    home = Home(folder)
    with ModelRegistry(home.registry, read_only=True) as registry:
        is_erased = promoted[-1].client in registry.erased_clients()
    return _verified(home, promoted[-1]) if is_erased else None


def _requests(folder: Path, leaver: str) -> list[Entry]:
    path = Home(folder).journal
    clients = RoundLog(folder / "rounds.jsonl").clients()
    if not path.exists() or not clients:
        return []
    name = select(leaver, clients).name
    with Journal(path, read_only=True) as journal:
        return [entry for entry in journal.entries() if entry.client == name]


def _verified(home: Home, entry: Entry) -> ErasureResult:
    path, signers = home.receipt_path(entry.digest), home.signers()
    data = read_bounded(path, MAX_RECEIPT_BYTES)
    receipt = verify_receipt(data, signers.keys, auditors=signers.auditors, ledger=home.ledger)
    predicate = receipt.statement.predicate
    return ErasureResult(
        client=predicate.request.client,
        method=predicate.method.name,
        rung=predicate.method.rung,
        model=receipt.statement.subject[0].digest.sha256,
        receipt=str(path),
        page=str(path.with_suffix(".html")),
        promoted=predicate.request.promoted,
    )
