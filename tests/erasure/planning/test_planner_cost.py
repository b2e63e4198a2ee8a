"""The plan's bytes against what an erasure of the same number of rounds is counted to take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.erasure import small
from harness.erasure.small import NOW
from secede.erasure.documents.plan import GuardLimits
from secede.erasure.documents.request import unverified_request
from secede.erasure.planning.options import EraseOptions
from secede.erasure.planning.planner import rung_of
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.progress import Progress
from secede.erasure.storage.transition_details import RoundDetails, Transition
from secede.erasure.workflow import erase
from secede.simulation.backend import SimulatedBackend
from secede.unlearning.registry import METHODS as METHODS_BY_NAME

SIZE = 4 * (64 * 3 + 3)
SETTINGS: dict[str, dict[str, Any]] = {
    "projected-ascent": small.STEP,
    "orthogonal-descent": {"rounds": 2},
}
# Without those that cannot be here: what is there to compare with is refused, a linear model has no
# hidden layer to prune, and the server no data to distil with.
METHODS = (
    "second-choice",
    "projected-ascent",
    "virtual-teacher",
    "orthogonal-descent",
    "negated-update",
    "federaser",
    "rewind",
    "weight-negation",
    "retrain",
    "rapid-retrain",
)


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("predicted")
    return small.make(folder, small.CONFIG + "situation.history = true\n")


@pytest.mark.parametrize("method", METHODS)
def test_the_plan_predicts_the_bytes_that_are_counted(
    founded: Home, tmp_path: Path, method: str
) -> None:
    home = small.copy(founded, tmp_path / "home")
    rung = rung_of(METHODS_BY_NAME[method])
    # The rung comes first, or the one before it fails at once.
    ground = SimulatedBackend(home, gone=[] if rung == "local-step" else ["site-0"])
    entry = small.receive(home)
    with Journal(home.journal, read_only=True) as journal:
        request = journal.request(entry.id)

    def options(rounds: int) -> EraseOptions:
        return EraseOptions(
            methods=("weight-negation", method) if rung == "retraining" else (method,),
            settings={method: SETTINGS[method]} if method in SETTINGS else {},
            max_rounds=rounds,
            min_rounds=min(1, rounds),
            max_server_rounds=0 if rung == "retraining" else rounds,
            guard=GuardLimits(min_distance=0, min_line_distance=0, max_distance=99),
        )

    def predicted(rounds: int) -> tuple[int, int]:
        plan = erase.plan(home, ground, request, options=options(rounds), now=NOW)
        (step,) = [step for step in plan.ladder if step.method == method]
        return step.upload_bytes, step.download_bytes

    plans = [predicted(rounds) for rounds in range(6)]
    small.erase(home, entry.id, ground=ground, how=options(5))
    parts: list[list[Transition]] = [[]]
    course = small.course(home)
    for transition in course.transitions:
        parts[-1].append(transition)
        if transition.state == "escalated":
            parts.append([])
    taken = parts[rung == "retraining"]
    rounds = max(t.details.round for t in taken if isinstance(t.details, RoundDetails))
    cost = Progress(course.entry, tuple(taken)).cost
    up, down = cost.upload_bytes, cost.download_bytes
    if rung == "retraining":  # the model from before was counted on the rung before
        up, down = up + 3 * 2 * 8 * 3, down + 3 * SIZE
    assert (up, down) == plans[rounds]


def test_replays_are_predicted_by_hand_arithmetic(founded: Home) -> None:
    # Rounds 1 and 3 of 4 are kept, the first is replayed without asking: one exchange with three.
    request = unverified_request(small.ask(founded))
    options = EraseOptions(max_server_rounds=0, measure_at_leaver=False)
    step = erase.plan(founded, SimulatedBackend(founded), request, options=options, now=NOW).ladder[
        1
    ]
    assert step.method == "federaser"
    assert step.upload_bytes == 3 * SIZE + (1 + 2) * 3 * (2 * 8 * 3)
    assert step.download_bytes == 3 * SIZE + 2 * 3 * SIZE
