"""Tests `erasure/workflow/measurement.py` and `erasure/workflow/post_training.py` too."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta

import pytest
import torch

from harness.erasure import small
from harness.erasure.small import HAPPY, NOW, Hostile
from secede import state as states
from secede.erasure.documents.plan import Margins
from secede.erasure.documents.receipt import DESTROYED_KINDS
from secede.erasure.documents.request import sign_request, unverified_request
from secede.erasure.planning.options import EraseOptions
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.model_registry import Candidate, ModelRegistry
from secede.erasure.workflow import erase
from secede.erasure.workflow.measurement import NOTHING, NOTHING_REMOVED, ONE_MORE_ROUND, RETURNED
from secede.errors import GuardError, LossError, RequestError, SilentError
from secede.federation.engine import Update
from secede.simulation.backend import SimulatedBackend
from secede.state import State
from secede.unlearning.methods.projected_ascent import ProjectedAscent


def test_a_request_ends_in_a_receipt_that_verifies_with_model_and_ledger(home: Home) -> None:
    before, lines = small.serving(home), list[str]()
    outcome = small.erase(home, small.receive(home).id, tell=lines.append)
    assert (outcome.state, outcome.rung, outcome.method) == (
        "promoted",
        "local-step",
        "projected-ascent",
    )
    assert outcome.receipt is not None
    assert outcome.page is not None
    assert outcome.model is not None
    way = small.way(home)
    rounds = way.count("post-training")
    assert way == [*HAPPY, *["post-training"] * rounds, "verified", "promoted"]
    after = states.digest(states.load(home.model_path(outcome.model))[0])
    checked = verify_receipt(
        outcome.receipt.read_bytes(), home.keyring(), model_digest=after, ledger=home.ledger
    )
    told = checked.statement.predicate
    assert (told.models.before, told.models.after) == (before, after)
    assert told.method.parameters.keys() == {f.name for f in fields(ProjectedAscent)}
    assert told.scope.weight == pytest.approx(0.25, abs=0.02)
    assert told.scope.commitment is not None
    assert told.costs.rounds == rounds - 1
    assert told.verification.forgotten == "undetermined"
    assert NOTHING in told.limits
    page = outcome.page.read_text()
    assert NOTHING.replace("'", "&#39;") in page
    assert "How close to retraining" not in page
    assert lines[0].startswith("Plan: erase site-0 from north")
    assert lines[1] == "planned"
    assert lines[-1] == "promoted: projected-ascent"


def test_the_old_model_is_retired_and_nothing_of_the_leaver_stays(home: Home) -> None:
    before = small.serving(home)
    outcome = small.erase(home, small.receive(home).id)
    assert not home.model_path(before).exists()
    assert not home.work_folder(1).exists()
    assert not (home.path / "sites" / "site-0.safetensors").exists()
    with ModelRegistry(home.registry, read_only=True) as registry:
        assert registry.carriers("site-0") == ()
        old = next(m for m in registry.models() if m.digest == before)
        assert old.status == "retired"
        with pytest.raises(GuardError, match="was erased"):
            registry.check_update("site-0", small.serving(home))
        with pytest.raises(GuardError, match="retired"):
            registry.check_update("site-1", before)
    told = small.told(home)
    gone = {thing["what"]: thing["digest"] for thing in told["destroyed"]}
    assert gone[DESTROYED_KINDS["model-before"]] == before
    assert DESTROYED_KINDS["leaver-state"] in gone
    assert DESTROYED_KINDS["last-update"] in gone
    assert outcome.model not in gone.values()


def test_the_ledger_has_every_transition_once_and_who_received_what(home: Home) -> None:
    small.erase(home, small.receive(home).id)
    course = small.course(home)
    with Ledger(home.ledger, read_only=True) as ledger:
        ledger.verify()
        rows = [(row.kind, row.body) for row in ledger.rows()]
    moved = [body for kind, body in rows if kind == "transition"]
    assert [(b["number"], b["state"]) for b in moved] == [
        (t.number, t.state) for t in course.transitions
    ]
    received: dict[str, set[str]] = {}
    for kind, body in rows:
        if kind == "delivered":
            received.setdefault(body["model"], set()).update(body["clients"])
    everybody = {"site-0", "site-1", "site-2", "site-3"}  # the leaver measures in the end
    assert received[small.serving(home)] == everybody
    assert "site-0" in received[small.told(home)["models"]["before"]]
    (returned,) = [d for what, d in course.models if what == "leaver-state"]
    assert returned not in received or "site-0" not in received[returned]


def test_the_plan_predicts_the_bytes_that_are_counted(home: Home) -> None:
    entry = small.receive(home)
    with Journal(home.journal, read_only=True) as journal:
        request = journal.request(entry.id)
    ground = SimulatedBackend(home)
    plans = [
        erase.plan(home, ground, request, options=small.options(max_rounds=rounds), now=NOW)
        for rounds in range(6)
    ]
    small.erase(home, entry.id, ground=ground)
    told = small.told(home)
    assert told["method"]["tried_before"] == []
    plan = plans[told["method"]["rounds"]]
    step = plan.ladder[0]
    assert (told["costs"]["upload_bytes"], told["costs"]["download_bytes"]) == (
        step.upload_bytes,
        step.download_bytes,
    )


def test_doing_it_again_changes_nothing(home: Home) -> None:
    entry = small.receive(home)
    first = small.erase(home, entry.id)
    left = small.timeless(home)
    assert small.erase(home, entry.id) == first
    assert small.timeless(home) == left


def test_after_an_erasure_without_rounds_the_others_can_still_leave(home: Home) -> None:
    before = states.load(home.model_path(small.serving(home)))[0]
    draw = torch.Generator().manual_seed(0)
    noise = {n: torch.randn(v.shape, generator=draw) for n, v in before.items()}
    start = states.shifted(before, noise, 0.05 / states.norm(noise))
    hostile = Hostile(home, leaver=lambda _: start)
    small.erase(home, small.receive(home).id, ground=hostile)
    outcome = small.erase(home, small.receive(home, "site-1").id)
    assert (outcome.state, outcome.failures[:1]) == ("promoted", ())


def near(home: Home) -> State:
    """Return a state that is as good as the serving model, and not it."""
    before = states.load(home.model_path(small.serving(home)))[0]
    draw = torch.Generator().manual_seed(0)
    noise = {n: torch.randn(v.shape, generator=draw) for n, v in before.items()}
    return states.shifted(before, noise, 0.05 / states.norm(noise))


def test_no_round_at_all_is_taken_where_none_is_needed_and_none_is_asked_for(home: Home) -> None:
    start = near(home)
    hostile = Hostile(home, leaver=lambda _: start)
    small.erase(home, small.receive(home).id, ground=hostile, how=small.options(min_rounds=0))
    told = small.told(home)
    assert told["method"]["rounds"] == 0
    assert told["models"]["after"] == states.digest(start)
    assert {RETURNED, NOTHING_REMOVED} <= {*told["limits"]}


def test_what_the_leaver_returned_does_not_serve_and_the_receipt_says_what_was_needed(
    home: Home,
) -> None:
    start = near(home)
    small.erase(home, small.receive(home).id, ground=Hostile(home, leaver=lambda _: start))
    told = small.told(home)
    assert told["method"]["rounds"] == 1
    assert ONE_MORE_ROUND.format(rounds="one was") in told["limits"]
    assert not {RETURNED, NOTHING_REMOVED} & {*told["limits"]}
    assert small.course(home).verification.rounds_needed == 0
    assert states.digest(start) in [thing["digest"] for thing in told["destroyed"]]


def test_rounds_can_be_asked_for_however_good_the_start_is(home: Home) -> None:
    before = states.load(home.model_path(small.serving(home)))[0]
    draw = torch.Generator().manual_seed(0)
    noise = {n: torch.randn(v.shape, generator=draw) for n, v in before.items()}
    start = states.shifted(before, noise, 0.05 / states.norm(noise))
    hostile = Hostile(home, leaver=lambda _: start)
    small.erase(home, small.receive(home).id, ground=hostile, how=small.options(min_rounds=2))
    told = small.told(home)
    assert told["method"]["rounds"] == 2
    assert RETURNED not in told["limits"]


def test_a_request_for_a_client_that_the_model_lacks_is_refused(home: Home) -> None:
    before = small.serving(home)
    small.erase(home, small.receive(home).id)
    for model, words in ((before, "was erased from it"), ("ab" * 32, "not one of this")):
        entry = erase.receive(home, small.ask(home, model=model), NOW)
        outcome = small.erase(home, entry.id)
        assert outcome.state == "refused"
        assert words in str(outcome.reason)
        with Journal(home.journal, read_only=True) as journal:
            request = journal.request(entry.id)
        with pytest.raises(RequestError, match=words):
            erase.plan(home, SimulatedBackend(home), request, options=EraseOptions(), now=NOW)


def test_an_erasure_is_planned_again_if_another_one_came_first(home: Home) -> None:
    first = small.receive(home, "site-0")
    with pytest.raises(SilentError):
        small.erase(
            home,
            first.id,
            ground=Hostile(home, silent=True),
            how=small.options(wait=timedelta(hours=1)),
        )
    assert small.erase(home, small.receive(home, "site-1").id).state == "promoted"
    between = small.serving(home)
    outcome = small.erase(home, first.id)
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    assert small.way(home)[:4] == ["received", "planned", "planned", "local-step"]
    assert small.told(home)["models"]["before"] == between
    with ModelRegistry(home.registry, read_only=True) as registry:
        (serving,) = [m for m in registry.models() if m.status == "serving"]
        assert serving.clients == ("site-2", "site-3")
        assert registry.erased_clients() == ("site-0", "site-1")


def test_a_promotion_that_was_cut_short_ends_whatever_serves_by_then(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, ground = small.receive(home), SimulatedBackend(home)

    def cut(client: str, trained_from: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ground, "commit", cut)
    with pytest.raises(KeyboardInterrupt):
        small.erase(home, entry.id, ground=ground)
    erased = small.serving(home)
    others = ("site-1", "site-2", "site-3")
    with ModelRegistry(home.registry) as registry:  # training goes on meanwhile
        trained = Candidate(digest="cd" * 32, parent=erased, run="north", round=9, clients=others)
        registry.promote(trained, NOW)
    outcome = small.erase(home, entry.id)
    assert (outcome.state, outcome.model) == ("promoted", erased)
    assert small.told(home)["models"]["after"] == erased
    assert small.serving(home) == "cd" * 32


@pytest.mark.parametrize("how", ["lost", "damaged"])
@pytest.mark.parametrize("when", ["guarded", "verified"])
def test_a_kept_state_that_is_damaged_is_computed_again(home: Home, how: str, when: str) -> None:
    other = small.copy(home, home.path.parent / "other")
    data = small.ask(home)
    left = []
    for place, spoil in ((home, False), (other, True)):
        entry = erase.receive(place, data, NOW)

        seen = list[str]()

        def watch(
            line: str, place: Home = place, spoil: bool = spoil, seen: list[str] = seen
        ) -> None:
            seen.append(line)
            if not spoil or seen.count(when) != 1 or line != when:
                return
            for path in place.work_folder(1).glob("*.safetensors"):
                path.unlink() if how == "lost" else path.write_bytes(b"x" + path.read_bytes()[1:])

        small.erase(place, entry.id, tell=watch)
        left.append(small.serving(place))
    assert left[0] == left[1]
    assert small.way(other).count("planned") == 2


def test_a_robust_mean_holds_against_a_malicious_retained_client(home: Home) -> None:
    def turned(update: Update, start: State) -> State:
        return states.shifted(start, states.difference(update.state, start), -50)

    other = small.copy(home, home.path.parent / "other")
    hostile = Hostile(home, retained=turned)
    with pytest.raises(LossError, match="all samples: accuracy fell"):
        small.erase(home, small.receive(home).id, ground=hostile)
    robust = small.erase(
        other,
        small.receive(other).id,
        ground=Hostile(other, retained=turned),
        how=small.options(mean="median"),
    )
    assert (robust.state, robust.rung) == ("promoted", "local-step")
    assert small.told(other)["method"]["mean"] == "median"


def test_backups_and_margins_are_stated(home: Home) -> None:
    how = small.options(backups_until=small.later(days=30), margins=Margins(overall=0.2))
    small.erase(home, small.receive(home).id, how=how)
    told = small.told(home)
    (left,) = told["remaining"]
    assert left["until"] == "2026-12-15T12:00:00Z"
    assert told["method"]["settings"]["margins.overall"] == 0.2


@pytest.mark.parametrize("withdrawn", [False, True])
def test_what_the_server_ended_does_not_lock_a_client_out(home: Home, withdrawn: bool) -> None:
    # Three of them kept a client from asking for 30 days, the law's whole term.
    for _ in range(3):
        erase.close_request(
            home,
            SimulatedBackend(home),
            erase.receive(home, small.ask(home), NOW).id,
            "not now",
            key=home.server_key(),
            clock=lambda: NOW,
            withdrawn=withdrawn,
        )
    if withdrawn:
        with pytest.raises(RequestError, match="made 3 requests within 30 days, the limit is 3"):
            erase.receive(home, small.ask(home), NOW)
    else:
        ground = Hostile(home, retained=small.broken, malicious=3)
        entry = erase.receive(home, small.ask(home), NOW)
        how = small.options(max_rounds=0, max_server_rounds=0)
        assert small.erase(home, entry.id, ground=ground, how=how).state == "rolled-back"
        assert erase.receive(home, small.ask(home), NOW).open


def test_a_request_of_another_federation_is_refused_at_the_door(home: Home) -> None:
    asked = unverified_request(small.ask(home))
    from secede.erasure.signing.keys import load_private_key

    key = load_private_key(home.path / "sites" / "site-0.key")
    stranger = sign_request(asked.model_copy(update={"federation": "south"}), key)
    with pytest.raises(RequestError, match="is for federation 'south'"):
        erase.receive(home, stranger, NOW)
    assert erase.receive(home, small.ask(home), NOW).acknowledged == NOW
