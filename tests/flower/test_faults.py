"""Each process of a real deployment is killed at each stage, at random moments.

Nothing may be lost, nothing may hang, and the same command must come to an end. `--timings N`
tries N moments for each; `make faults` ten.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator

import pytest

from harness.flower import deployed, faults
from harness.flower.faults import PROCESSES, ROUNDS, STAGES, Trial
from secede.flower.deploy import processes, runs, server_home, supervisor
from secede.flower.deploy.project import MARK, Project
from secede.flower.storage.round_log import RoundLog

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "timing" in metafunc.fixturenames:
        metafunc.parametrize("timing", range(metafunc.config.getoption("--timings")))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A deployment that was trained once, for erasures to begin from."""
    project = deployed.make(tmp_path_factory.mktemp("faults") / "north", sites=3)
    with deployed.forked(project):
        try:
            project = supervisor.up(project)
            deployed.train(project, rounds=ROUNDS)
            shutil.copytree(project.folder / "sites", project.folder / "sites-trained")
            yield project
        finally:
            supervisor.down(Project.load(project.folder))
    assert processes.with_environment(MARK, str(project.folder)) == []


def delay(process: str, stage: str, timing: int) -> float:
    return random.Random(f"{process} {stage} {timing}").uniform(0, STAGES[stage])


@pytest.mark.parametrize("process", PROCESSES)
def test_training_goes_on_after_its_last_completed_round(
    project: Project, process: str, timing: int
) -> None:
    home = project.folder / "homes" / f"training-{process}-{timing}"
    config: runs.Config = {
        "erasure.home": str(home),
        "num-server-rounds": ROUNDS,
        "slow-seconds": faults.SLOW_SECONDS,
    }
    trial = Trial(project, home, config)

    def ended() -> bool:
        return len(RoundLog(home / "rounds.jsonl").rounds()) >= ROUNDS

    trial.go(process, "training", delay(process, "training", timing), ended)
    assert trial.killed is not None
    assert len(RoundLog(home / "rounds.jsonl").rounds()) == ROUNDS  # and none was done twice
    faults.check_rounds(home)
    print(f"RESULT training {process} {timing}: {trial.runs} runs, killed in {trial.killed}")


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "training"])
def test_an_erasure_comes_to_its_end(
    project: Project, process: str, stage: str, timing: int
) -> None:
    home = project.folder / "homes" / f"{stage}-{process}-{timing}"
    shutil.copytree(project.home, home)
    faults.restore(project)
    config: runs.Config = {
        "erasure.home": str(home),
        "erasure.leaver": f"name:{faults.LEAVER}",
        "slow-seconds": faults.SLOW_SECONDS,
    }
    trial = Trial(project, home, config)

    trial.go(process, stage, delay(process, stage, timing), lambda: faults.has_ended(home))
    assert trial.killed is not None  # the stage was reached, and not missed
    told = faults.state(home)
    faults.check_records(home)
    faults.check_rounds(home)
    if told == "promoted":
        erased = server_home.verified_result(home, f"name:{faults.LEAVER}")
        assert RoundLog(home / "rounds.jsonl").rounds()[-1].model == erased.model
        told += f" by {erased.method}"
    if (process, stage) != ("leaver", "local-step"):  # what the leaver had to do, it did
        assert told == f"promoted by {faults.METHOD}"
    print(f"RESULT {stage} {process} {timing}: {told}, {trial.runs} runs, killed in {trial.killed}")
