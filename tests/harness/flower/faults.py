"""Kills of a deployment's processes: when, which one, and what must be true afterwards."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from secede import state as states
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.ledger import Ledger
from secede.errors import SecedeError
from secede.flower.deploy import processes, runs, supervisor
from secede.flower.deploy.project import MARK, SUPERLINK, Project
from secede.flower.storage.round_log import RoundLog

LEAVER, RETAINED, ROUNDS = "site-2", "site-1", 3
METHOD = "projected-ascent"  # the first rung of the app's ladder
PROCESSES = ("superlink", "serverapp", "leaver", "retained")
STAGES = {  # how long after its beginning a stage may still last, in seconds
    "training": 11.0,
    "local-step": 2.0,
    "post-training": 20.0,
    "closing": 0.2,
}
SLOW_SECONDS = 0.5  # that an app takes for each message, besides its work
QUIET_SECONDS = 2.0  # without any app, after which none comes any more
LATE_SECONDS = 15.0  # after which an app that is still there will not end
RUN_SECONDS, TRIES = 300.0, 5
_BEGUN = {
    "local-step": ("planned",),
    "post-training": ("guarded", "post-training"),
    "closing": ("verified", "promoted"),
}


def state(home: Path) -> str:
    """Return how far the erasure in a home is, "" if there is none."""
    path = Home(home).journal
    if not path.exists():
        return ""
    with suppress(SecedeError), Journal(path, read_only=True) as journal:
        found = journal.entries()
        return found[-1].state if found else ""
    return ""


def has_begun(stage: str, home: Path) -> bool:
    """Return whether a stage has been reached."""
    if stage == "training":
        return len(RoundLog(home / "rounds.jsonl").rounds()) >= 1
    return state(home) in _BEGUN[stage]


def has_ended(home: Path) -> bool:
    """Return whether an erasure has come to its end, with all that belongs to it."""
    if state(home) == "promoted":
        settled = RoundLog(home / "rounds.jsonl").rounds()[-1].erased == LEAVER
        return settled and bool(list(Home(home).receipts.glob("*.html")))
    return state(home) == "rolled-back"


def restore(project: Project) -> None:
    """Give the sites back what they kept after training, once nothing is under way any more.

    A leaver that was erased deletes its updates when it is told so, which may be after its trial.
    An app whose message came only in part, before its SuperLink was killed, waits for the rest for
    up to two hours, and is not waited for: sites must work beside it.
    """
    supervisor.up(project)
    deadline = time.monotonic() + RUN_SECONDS
    while runs.active(project):
        assert time.monotonic() < deadline, "a run of an earlier trial does not end"
        time.sleep(0.5)
    quiet, deadline = time.monotonic(), time.monotonic() + LATE_SECONDS
    while time.monotonic() < min(quiet + QUIET_SECONDS, deadline):
        alive = [
            process.command for process in processes.with_environment(MARK, str(project.folder))
        ]
        if any(name in told for told in alive for name in ("flwr-clientapp", "flwr-serverapp")):
            quiet = time.monotonic()
        time.sleep(0.05)
    shutil.rmtree(project.folder / "sites")
    shutil.copytree(project.folder / "sites-trained", project.folder / "sites")


def victim(project: Project, process: str) -> int | None:
    """Return the id of the process to kill."""
    if process == "serverapp":
        marked = processes.with_environment(MARK, str(project.folder))
        found = [p for p in marked if "flwr-serverapp" in p.command]
        return found[0].pid if found else None
    name = {"superlink": SUPERLINK, "leaver": LEAVER, "retained": RETAINED}[process]
    running = processes.running(project, name)
    return running.pid if running else None


class Trial:
    """One run with one kill in it, and as many runs after it as it takes to come to an end."""

    def __init__(self, project: Project, home: Path, config: runs.Config) -> None:
        self.project, self.home, self.config = project, home, config
        self.runs = 0
        self.killed: str | None = None

    def go(self, process: str, stage: str, delay: float, ended: Callable[[], bool]) -> None:
        """Run, kill, put up again what died, and run again until `ended`."""
        for attempt in range(TRIES):
            supervisor.up(self.project)
            worker = threading.Thread(target=self._run)
            worker.start()
            if attempt == 0:
                self._kill(process, stage, delay, worker)
                with suppress(SecedeError):  # a run may end while it is put up
                    supervisor.up(self.project)
            worker.join(RUN_SECONDS + 60)
            assert not worker.is_alive(), "a run hangs"
            if ended():
                return
        raise AssertionError(f"no end after {TRIES} runs: {state(self.home)!r}")

    def _run(self) -> None:
        self.runs += 1
        try:
            runs.run(self.project, self.config, timeout=RUN_SECONDS, show=print)
        except SecedeError as error:
            print(f"run {self.runs}: {error}")

    def _kill(self, process: str, stage: str, delay: float, worker: threading.Thread) -> None:
        deadline = time.monotonic() + RUN_SECONDS
        while not has_begun(stage, self.home):
            if not worker.is_alive() or time.monotonic() > deadline:
                return
            time.sleep(0.02)
        time.sleep(delay)
        pid = victim(self.project, process)
        self.killed = f"{stage}, now {state(self.home) or 'training'}"
        if pid is None:
            self.killed += ", when it had ended by itself"
            return
        print(f"killing {process}, process {pid}, {delay:.2f} seconds into {self.killed}")
        os.kill(pid, signal.SIGKILL)


def check_rounds(home: Path) -> None:
    """Raise unless every round began where the one before ended, and none is there twice."""
    found = RoundLog(home / "rounds.jsonl").rounds()
    trained = [each for each in found if not each.erased]
    assert [each.number for each in trained] == list(range(1, len(trained) + 1))
    assert all(a.number < b.number for a, b in itertools.pairwise(found))  # an erasure takes some
    for before, after in itertools.pairwise(trained):
        assert after.start == before.model, f"round {after.number} does not go on from the last"
    loaded, _ = states.load(Home(home).model_path(found[-1].model))
    assert states.digest(loaded) == found[-1].model
    assert states.is_finite(loaded)


def check_records(home: Path) -> None:
    """Raise unless journal, ledger and receipts tell one and the same whole story."""
    found = Home(home)
    with Journal(found.journal, read_only=True) as journal:
        requests = journal.entries()
    assert len(requests) == 1  # it went on, and was not asked for twice
    assert not requests[0].open
    with Ledger(found.ledger, read_only=True) as ledger:
        ledger.verify()
    assert not list((home / "work").rglob("*.safetensors"))
    assert not [path for path in home.rglob(".*.part") if path.parent.name != "models"]
