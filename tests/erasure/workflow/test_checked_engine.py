"""What clients send through the whole workflow: one of them neither stops nor decides it.

Tests `erasure/workflow/checked_engine.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.erasure import small
from harness.erasure.liars import Liars
from harness.erasure.small import left_out, model, slow
from secede import state as states
from secede.erasure.documents.plan import GuardLimits
from secede.erasure.planning.options import EraseOptions
from secede.erasure.storage.home import Home
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.transition_details import EscalationDetails, Exchange
from secede.erasure.workflow.measurement import STALE
from secede.errors import DataError, SilentError
from secede.federation.engine import Cost, Update
from secede.federation.simulator import Simulator
from secede.simulation.backend import SimulatedBackend, Sites
from secede.state import State
from secede.unlearning.method import LocalResult, Reply

HUGE = 10**12


def named(home: Home, client: str) -> bool:
    """Return whether the receipt names a client among its limits."""
    return any(client in limit for limit in small.told(home)["limits"])


def each(reply: Reply | Update, change: Callable[[Any], Any]) -> Any:
    return {name: change(value) for name, value in reply.state.items()}


def swapped(reply: Reply, **changes: Any) -> Reply:
    return replace(reply, **changes)


def huge(reply: Reply) -> Reply:
    counts = torch.full_like(reply.state["samples"], HUGE)
    state = {"right": counts.clone(), "samples": counts}
    return swapped(reply, state=state, samples=int(counts.sum()))


def one_more(reply: Reply) -> Reply:
    state = {n: torch.cat([v, torch.zeros(1, dtype=v.dtype)]) for n, v in reply.state.items()}
    return swapped(reply, state=state)


def overflowing(reply: Reply) -> Reply:
    counts = torch.zeros_like(reply.state["samples"])
    counts[0] = 2**62 + 2**61
    return swapped(reply, state={"right": counts, "samples": counts}, samples=int(counts.sum()))


class Growing:
    """One more sample of class 0 with every count, or one moved to it."""

    def __init__(self, *, moved: bool) -> None:
        self.calls, self.moved = 0, moved

    def __call__(self, reply: Reply) -> Reply:
        self.calls += 1
        samples = reply.state["samples"].clone()
        samples[0] += self.calls
        samples[1] -= self.calls * self.moved
        right = torch.zeros_like(samples)
        state = {"right": right, "samples": samples}
        return swapped(reply, state=state, samples=int(samples.sum()))


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (huge, "wrong-samples"),
        (one_more, "malformed"),
        (lambda r: swapped(r, state={}), "malformed"),
        (overflowing, "malformed"),
        (
            lambda r: swapped(r, state={n: v * 0 for n, v in r.state.items()}, samples=0),
            "malformed",
        ),
        (lambda r: swapped(r, state={n: v.to_sparse() for n, v in r.state.items()}), "malformed"),
        (lambda r: swapped(r, state={n: v.numpy() for n, v in r.state.items()}), "malformed"),
        (lambda r: swapped(r, samples=r.samples + 0.0), "malformed"),
        (Growing(moved=False), "wrong-samples"),
        (Growing(moved=True), "wrong-samples"),
    ],
)
def test_counts_that_cannot_be_are_left_out_and_their_sender_is_named(
    home: Home, lie: Callable[[Reply], Reply], why: str
) -> None:
    outcome = small.erase(home, small.receive(home).id, ground=Liars(home, who=(3,), counts=lie))
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    assert left_out(home) == {("site-3", why)}
    assert named(home, f"site-3 ({why})")


WIDE = GuardLimits(max_distance=9, radius=9)  # lets a wreck through to the gate


def wreck(home: Home) -> Callable[[State], State]:
    """Return what a leaver sends that mistakes every class for the next one."""
    return lambda _: {name: torch.roll(value, 1, 0) for name, value in model(home).items()}


def test_one_clients_claims_do_not_let_a_wrecked_model_through(home: Home) -> None:
    liars = Liars(home, who=(3,), counts=huge, leaver=wreck(home))
    how = small.options(max_rounds=0, guard=WIDE)
    outcome = small.erase(home, small.receive(home).id, ground=liars, how=how)
    assert outcome.failures[0].outcome == "gate-failed"
    assert outcome.failures[0].reason.startswith("all samples: accuracy fell")


def test_the_servers_held_out_samples_veto_what_the_clients_claim(home: Home) -> None:
    def all_right(reply: Reply) -> Reply:
        state = {name: reply.state[name] for name in ("right", "samples")}
        return swapped(reply, state={**state, "right": reply.state["samples"]})

    liars = Liars(home, who=(1, 2, 3), counts=all_right, leaver=wreck(home))
    how = small.options(max_rounds=0, guard=WIDE)
    outcome = small.erase(home, small.receive(home).id, ground=liars, how=how)
    assert outcome.failures[0].outcome == "gate-failed"
    assert "held-out" in outcome.failures[0].reason


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (lambda u: replace(u, samples=10**15), "wrong-samples"),
        (lambda u: replace(u, state=each(u, lambda v: v * float("nan"))), "not-finite"),
        slow(lambda u: replace(u, samples=0), "wrong-samples"),
        slow(lambda u: replace(u, state=each(u, lambda v: v[:1])), "malformed"),
        slow(lambda u: replace(u, state=each(u, Tensor.numpy)), "malformed"),
        slow(lambda u: replace(u, state={}), "malformed"),
        slow(lambda u: replace(u, client=99), "silent"),
        slow(lambda u: replace(u, client=1), "silent"),
    ],
)
@pytest.mark.parametrize("mean", ["mean", slow("median")])
def test_an_update_that_cannot_be_used_is_left_out_and_its_sender_is_named(
    home: Home,
    lie: Callable[[Update], Update],
    why: str,
    mean: Any,
    without_the_last: dict[str, str],
) -> None:
    liars = Liars(home, who=(3,), update=lie)
    how = small.options(min_rounds=1, max_rounds=1, mean=mean)
    outcome = small.erase(home, small.receive(home).id, ground=liars, how=how)
    assert outcome.rung == "local-step"
    assert left_out(home) == {("site-3", why)}
    assert small.serving(home) == without_the_last[mean]  # it had no part in the mean at all


@pytest.fixture(scope="module")
def without_the_last(founded: Home, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the model that serves if the last client is not there, by the mean."""
    found, means = dict[str, str](), ("mean", "median")
    for mean in means:
        home = small.copy(founded, tmp_path_factory.mktemp("absent") / mean)
        how = small.options(min_rounds=1, max_rounds=1, mean=mean)
        absent = SimulatedBackend(home, gone=["site-3"])
        small.erase(home, small.receive(home).id, ground=absent, how=how)
        found[mean] = small.serving(home)
    return found


def test_a_silent_retained_client_is_passed_over_named_and_has_no_share(home: Home) -> None:
    ground = SimulatedBackend(home, gone=["site-1"])
    outcome = small.erase(home, small.receive(home).id, ground=ground)
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    assert left_out(home) == {("site-1", "silent")}
    assert named(home, "site-1 (silent)")
    told = {"client": "site-1", "why": "silent"}
    assert small.told(home)["method"]["left_out"] == [told]
    weights = {
        name: float(states.load(home.path / "sites" / f"{name}.safetensors")[1]["weight"])
        for name in ("site-1", "site-2", "site-3")
    }
    assert weights["site-1"] == 0
    assert sum(weights.values()) == pytest.approx(1)


def test_below_the_quorum_every_rung_is_given_up_and_it_ends(home: Home) -> None:
    ground = SimulatedBackend(home, gone=["site-1", "site-2"])
    before = small.serving(home)
    outcome = small.erase(home, small.receive(home).id, ground=ground)
    assert outcome.state == "rolled-back"
    assert [f.outcome for f in outcome.failures] == ["quorum"] * 3
    assert "expected 50% or more (silent)" in outcome.failures[0].reason
    assert small.serving(home) == before


def test_a_quorum_is_waited_for_as_long_as_the_plan_says(home: Home) -> None:
    entry, how = small.receive(home), small.options(wait=timedelta(hours=1))
    ground = SimulatedBackend(home, gone=["site-1", "site-2"])
    with pytest.raises(SilentError, match="asked again until"):
        small.erase(home, entry.id, ground=ground, how=how)
    assert small.erase(home, entry.id).state == "promoted"


def test_a_smaller_quorum_goes_on_with_one_client(home: Home) -> None:
    ground = SimulatedBackend(home, gone=["site-1", "site-2"])
    how = small.options(quorum=0.2)
    assert small.erase(home, small.receive(home).id, ground=ground, how=how).state == "promoted"


def test_a_slow_retained_client_counts_as_silent(home: Home) -> None:
    how = small.options(client_timeout=1e-9)
    outcome = small.erase(home, small.receive(home).id, how=how)
    assert {f.outcome for f in outcome.failures} == {"quorum"}


def test_a_replay_goes_on_without_a_client_that_is_gone_or_lies(tmp_path: Path) -> None:
    founded = small.make(tmp_path, small.CONFIG + "situation.history = true\n")
    grounds: list[Callable[[Home], SimulatedBackend]] = [
        lambda home: SimulatedBackend(home, gone=["site-0", "site-1"]),
        lambda home: Liars(
            home, gone=["site-0"], who=(1,), reply=lambda r: swapped(r, samples=10**9)
        ),
        lambda home: Liars(home, gone=["site-0"], who=(1,), reply=lambda r: swapped(r, state={})),
    ]
    for number, make in enumerate(grounds):
        home = small.copy(founded, tmp_path / str(number))
        outcome = small.erase(home, small.receive(home).id, ground=make(home), how=EraseOptions())
        assert outcome.method == "federaser"
        assert {client for client, _ in left_out(home)} == {"site-1"}


def test_nobody_but_the_retained_gets_the_new_model_unless_asked_for(
    founded: Home, tmp_path: Path
) -> None:
    for name, measured in (("plain", False), ("measured", True)):
        home = small.copy(founded, tmp_path / name)
        how = small.options(measure_at_leaver=measured)
        outcome = small.erase(home, small.receive(home).id, how=how)
        with Ledger(home.ledger, read_only=True) as ledger:
            rows = [row.body for row in ledger.rows() if row.kind == "delivered"]
        received = {c for b in rows if b["model"] == outcome.model for c in b["clients"]}
        assert ("site-0" in received) == measured
        at_leaver = [
            s for s in small.told(home)["verification"]["scores"] if "client" in s["measure"]
        ]
        assert len(at_leaver) == 1 + measured


def claiming(monkeypatch: pytest.MonkeyPatch, many: int, *, leaver: bool) -> None:
    """Let the leaver, or the last retained client, claim so many gradients."""
    genuine = Simulator.ask

    def ask(self: Simulator, client: int, task: Any, **how: Any) -> Any:
        def lie(side: Any) -> Any:
            reply = task(side)
            if isinstance(reply, LocalResult) and leaver:
                return replace(reply, report=replace(reply.report, gradient_samples=many))
            if client == 3 and not leaver:
                return replace(reply, gradient_samples=many)
            return reply

        return genuine(self, client, lie, **how)

    monkeypatch.setattr(Simulator, "ask", ask)


CLAIMS = {"as many as JSON has": 2**53 - 1, "endless": 10**5000}


@pytest.mark.parametrize("many", CLAIMS)
@pytest.mark.parametrize("leaver", [True, False])
def test_no_claimed_number_of_gradients_stops_an_erasure(
    home: Home, monkeypatch: pytest.MonkeyPatch, many: str, leaver: bool
) -> None:
    claiming(monkeypatch, CLAIMS[many], leaver=leaver)
    outcome = small.erase(home, small.receive(home).id)
    assert outcome.state == "promoted"
    assert outcome.rung == ("server-side" if leaver else "local-step")
    assert small.told(home)["costs"]["gradient_samples"] < 10**9
    assert left_out(home) == (set() if leaver else {("site-3", "malformed")})


def test_costs_beyond_all_numbers_are_cut_in_the_receipt_s_sum(home: Home) -> None:
    course = small.course(home, small.receive(home).id)
    exchange = Exchange(cost=Cost(gradient_samples=2**53 - 1))
    details = EscalationDetails(
        plan="a" * 64,
        rung="local-step",
        method="projected-ascent",
        outcome="broken",
        reason="it broke",
        next_rung=1,
        exchange=exchange,
    )
    first = replace(course.last, details=details)
    assert replace(course, transitions=(first, first)).cost.gradient_samples == 2**53 - 1


def test_with_everybody_there_no_limit_tells_of_updates_from_before(home: Home) -> None:
    small.erase(home, small.receive(home).id, how=small.options(min_rounds=1))
    told = small.told(home)["limits"]
    assert STALE not in told


@pytest.mark.parametrize("mean", ["mean", "median"])
def test_nobody_is_taken_out_of_a_mean_that_did_not_weigh(home: Home, mean: Any) -> None:
    small.erase(home, small.receive(home).id, how=small.options(min_rounds=1, mean=mean))
    weights = {name: Sites(home.path / "sites").load(name) for name in ("site-1", "site-2")}
    for own in weights.values():
        assert own is not None
        assert (own.weight > 0) == (mean == "mean")


def test_samples_that_a_retained_client_cannot_count_with_leave_it_out(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = Simulator.ask

    def ask(self: Simulator, client: int, task: Any, **how: Any) -> Any:
        if client == 3:
            raise DataError("its samples are damaged")
        return genuine(self, client, task, **how)

    monkeypatch.setattr(Simulator, "ask", ask)
    outcome = small.erase(home, small.receive(home).id)
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    assert left_out(home) == {("site-3", "malformed")}
