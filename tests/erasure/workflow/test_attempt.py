"""From rung to rung: who is gone, silent, late or refused is passed over, and it ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.erasure import small
from harness.erasure.small import HAPPY, NOW, Hostile
from secede import state as states
from secede.erasure.defences import reply_checks
from secede.erasure.documents.receipt import DESTROYED_KINDS
from secede.erasure.planning.options import EraseOptions
from secede.erasure.storage.home import Home
from secede.erasure.storage.ledger import Ledger
from secede.erasure.workflow import erase, post_training
from secede.erasure.workflow.measurement import ABSENT, ITSELF
from secede.errors import SilentError
from secede.federation.simulator import Simulator
from secede.simulation.backend import SimulatedBackend
from secede.state import State
from secede.unlearning.method import Method, Server, Start
from secede.unlearning.methods.projected_ascent import ProjectedAscent


def test_a_leaver_that_is_gone_is_erased_at_the_server(home: Home) -> None:
    ground = SimulatedBackend(home, gone=["site-0"])
    outcome = small.erase(home, small.receive(home).id, ground=ground, how=EraseOptions())
    assert (outcome.state, outcome.rung, outcome.method) == (
        "promoted",
        "server-side",
        "weight-negation",
    )
    assert "local-step" not in small.way(home)
    told = small.told(home)
    assert ABSENT in told["limits"]
    assert told["method"]["tried_before"] == []


def test_a_leaver_that_is_gone_cannot_measure_in_the_end(home: Home) -> None:
    ground, how = SimulatedBackend(home, gone=["site-0"]), EraseOptions(measure_at_leaver=True)
    small.erase(home, small.receive(home).id, ground=ground, how=how)
    assert ABSENT in small.told(home)["limits"]


def test_a_silent_leaver_is_waited_for_and_then_passed_over(home: Home) -> None:
    entry, how = small.receive(home), small.options(wait=timedelta(hours=3))
    ground = Hostile(home, silent=True)
    with pytest.raises(SilentError, match=r"asked again until 2026-11-15T15:00:00Z"):
        small.erase(home, entry.id, ground=ground, how=how)
    assert small.way(home) == ["received", "planned"]
    lines = list[str]()
    after = small.later(hours=4)
    outcome = small.erase(home, entry.id, ground=ground, now=after, tell=lines.append)
    assert lines[0] == "resuming from planned with the existing plan"
    assert outcome.rung == "server-side"
    (tried,) = small.told(home)["method"]["tried_before"]
    assert tried == {"rung": "local-step", "method": "projected-ascent", "outcome": "silent"}


def test_a_leaver_that_answers_too_late_counts_as_silent(home: Home) -> None:
    outcome = small.erase(home, small.receive(home).id, how=small.options(leaver_timeout=1e-6))
    assert outcome.rung == "server-side"
    assert "more than 1e-06 seconds" in outcome.failures[0].reason


def test_a_refused_state_is_not_used_and_the_next_rung_is_taken(home: Home) -> None:
    before = states.load(home.model_path(small.serving(home)))[0]
    outcome = small.erase(
        home, small.receive(home).id, ground=Hostile(home, leaver=lambda _: before)
    )
    assert outcome.rung == "server-side"
    assert "nothing was unlearnt" in outcome.failures[0].reason
    assert small.way(home)[:5] == [*HAPPY[:3], "escalated", "server-step"]


def test_what_does_not_pass_the_wire_is_never_written(home: Home) -> None:
    def broken(state: State) -> State:
        return {name: value * float("nan") for name, value in state.items()}

    outcome = small.erase(home, small.receive(home).id, ground=Hostile(home, leaver=broken))
    assert outcome.rung == "server-side"
    assert small.way(home)[:3] == ["received", "planned", "escalated"]
    assert "not finite" in outcome.failures[0].reason


def test_a_leaver_that_lost_its_own_state_is_passed_over(home: Home) -> None:
    (home.path / "sites" / "site-0.safetensors").unlink()
    outcome = small.erase(home, small.receive(home).id)
    assert outcome.rung == "server-side"
    assert outcome.failures[0].outcome == "unable"
    gone = [thing["what"] for thing in small.told(home)["destroyed"]]
    assert DESTROYED_KINDS["model-before"] in gone
    assert DESTROYED_KINDS["last-update"] not in gone


def test_a_damaged_history_gives_its_rung_up_and_not_the_erasure(tmp_path: Path) -> None:
    home = small.make(tmp_path, small.CONFIG + "situation.history = true\n")
    for path in (home.path / "history").glob("updates-*.safetensors"):
        path.write_bytes(b"spoilt")
    ground = SimulatedBackend(home, gone=["site-0"])
    outcome = small.erase(home, small.receive(home).id, ground=ground, how=EraseOptions())
    assert outcome.rung == "retraining"
    assert (outcome.failures[0].method, outcome.failures[0].outcome) == (
        "federaser",
        "unable",
    )


def test_a_shut_gate_escalates_and_retraining_is_its_own_comparison(home: Home) -> None:
    how = small.options(max_rounds=0, max_server_rounds=0)
    outcome = small.erase(home, small.receive(home).id, how=how)
    assert outcome.rung == "retraining"
    assert [f.outcome for f in outcome.failures] == ["gate-failed", "gate-failed"]
    told = small.told(home)
    assert told["method"]["rounds"] == 4
    assert told["verification"]["forgotten"] == "by-construction"
    assert ITSELF in told["limits"]


def test_retraining_forgets_by_definition_and_nothing_is_compared_with_itself(home: Home) -> None:
    ground = SimulatedBackend(home, gone=["site-0"])
    small.erase(home, small.receive(home).id, ground=ground, how=EraseOptions(max_server_rounds=0))
    told = small.told(home)["verification"]
    assert told["forgotten"] == "by-construction"
    assert not any(s["reference"]["model"] == "retrained" for s in told["scores"])


def test_an_exhausted_ladder_leaves_the_old_model_serving(home: Home) -> None:
    before = small.serving(home)
    ground = Hostile(home, retained=small.broken, malicious=3)
    how = small.options(max_rounds=0, max_server_rounds=0)
    outcome = small.erase(home, small.receive(home).id, ground=ground, how=how)
    assert outcome.state == "rolled-back"
    assert len(outcome.failures) == 3
    assert small.serving(home) == before
    assert home.model_path(before).exists()
    assert not home.work_folder(1).exists()
    assert not list((home.path / "sites").glob("*.next*"))
    with Ledger(home.ledger, read_only=True) as ledger:
        gone = [row.body["what"] for row in ledger.rows() if row.kind == "destroyed"]
    assert "leaver-state" in gone
    again = small.erase(home, erase.receive(home, small.ask(home), NOW).id)
    assert (again.request, again.state) == (2, "promoted")


@dataclass(frozen=True)
class Broken(Method):
    """A user's own method, whose code is at fault."""

    def start(self, server: Server) -> Start:
        return Start(state=dict[str, State]()["weight"])


@dataclass(frozen=True)
class Odd(Method):
    """A user's own method that returns no state."""

    def start(self, server: Server) -> Start:
        return Start(state=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plugin", "reason"),
    [
        ("Broken", f"KeyError in {__name__}, line "),
        ("Odd", "starts with NoneType, expected a state"),
    ],
)
def test_a_plugin_that_raises_gives_its_rung_up_and_is_named(
    home: Home, plugin: str, reason: str
) -> None:
    how = EraseOptions(methods=(f"{__name__}:{plugin}",), untrusted_leaver=True)
    outcome = small.erase(home, small.receive(home).id, how=how)
    assert (outcome.state, outcome.rung) == ("promoted", "retraining")
    (failure,) = outcome.failures
    assert failure.outcome == "broken"
    assert reason in failure.reason
    assert "code is at fault" in failure.reason


def test_a_bug_of_ours_stops_the_command_and_the_same_command_resumes(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise TypeError("a bug")

    entry = small.receive(home)
    with monkeypatch.context() as patched:
        patched.setattr(post_training, "count", broken)
        with pytest.raises(TypeError, match="a bug"):
            small.erase(home, entry.id)
    assert small.way(home) == HAPPY
    assert small.erase(home, entry.id).rung == "local-step"


def test_a_bug_between_a_method_and_its_clients_is_not_the_methods(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_checks, "checked_result", reply_checks.SILENT)  # not to be called
    with pytest.raises(TypeError):
        small.erase(home, small.receive(home).id)
    assert small.way(home) == ["received", "planned"]


BUGS = {  # what is broken of ours, without a frame of this file
    "the simulator": (Simulator, "train_round", "no function"),
    "the reference": (states, "reference", "no function"),
    "a method of ours": (ProjectedAscent, "unlearn", "no function"),
}


@pytest.mark.parametrize("place", BUGS)
def test_a_bug_of_ours_below_a_method_stops_the_command(
    home: Home, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    where, name, value = BUGS[place]
    entry = small.receive(home)
    with monkeypatch.context() as patched:
        patched.setattr(where, name, value)
        with pytest.raises(TypeError, match="not callable"):
            small.erase(home, entry.id)
    assert "escalated" not in small.way(home)
    assert small.erase(home, entry.id).rung == "local-step"


def test_memory_that_runs_out_is_no_methods_fault(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(ProjectedAscent, "unlearn", full)
    with pytest.raises(MemoryError):
        small.erase(home, small.receive(home).id)
