from __future__ import annotations

import json
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from harness.erasure import small
from harness.erasure.small import NOW, later
from secede.erasure.documents.plan import Margins
from secede.erasure.documents.request import unverified_request
from secede.erasure.planning.options import (
    EraseOptions,
    differ_from_plans,
    options_from_json,
    options_to_json,
    planned_options,
)
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Entry
from secede.erasure.storage.progress import Progress
from secede.erasure.storage.transition_details import PlanDetails, Transition
from secede.erasure.workflow import erase
from secede.errors import ConfigError, RequestError
from secede.simulation.backend import SimulatedBackend

OPTIONS = EraseOptions(
    methods=("projected-ascent", "retrain"),
    settings={"projected-ascent": {"epochs": 3, "radius": 0.5}},
    untrusted_leaver=True,
    max_rounds=7,
    mean="median",
    margins=Margins(overall=0.2),
    wait=timedelta(hours=3, seconds=1),
    backups_until=NOW,
    keep_unused_weights=True,
)
ENTRY: dict[str, Any] = {
    "id": 1,
    "client": "site-0",
    "digest": "b" * 64,
    "received": NOW,
    "acknowledged": NOW,
    "due": NOW,
    "extended": 0,
    "reason": None,
    "open": True,
    "state": "planned",
}


def planned(*kept: dict[str, Any]) -> Progress:
    """Return the progress of a request that was planned with such options."""
    details = [PlanDetails(plan="a" * 64, options=options) for options in kept]
    transitions = [Transition(number=n, at=NOW, details=one) for n, one in enumerate(details)]
    return Progress(Entry(**ENTRY), tuple(transitions))


@pytest.mark.parametrize("options", [EraseOptions(), OPTIONS], ids=["usual", "own"])
def test_options_come_back_as_they_were_written(options: EraseOptions) -> None:
    kept = json.loads(json.dumps(options_to_json(options)))
    assert kept.keys() == {f.name for f in fields(EraseOptions)}
    assert planned_options(planned(kept), EraseOptions()) == options


def test_options_that_a_journal_lacks_take_their_defaults() -> None:
    kept = options_to_json(EraseOptions(max_rounds=3))
    del kept["keep_unused_weights"]
    assert planned_options(planned(kept), EraseOptions()) == EraseOptions(max_rounds=3)
    assert options_from_json({"keep_unused_weights": True}) == EraseOptions(
        keep_unused_weights=True
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_rounds": 3, "min_rounds": 5}, "at most 3 rounds, but at least 5 after"),
        ({"max_rounds": 0}, "at most 0 rounds, but at least 1 after"),
        ({"methods": ["gradient-ascent"]}, "'gradient-ascent' is a baseline"),
        ({"methods": ["fine-tune@x"]}, "'fine-tune@x' is a baseline"),
        ({"methods": ["retrain", "fine-tune"]}, "'fine-tune' is a baseline"),
    ],
)
def test_what_nobody_should_ask_for_is_refused_where_it_is_given(
    given: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        options_from_json(given)
    # A journal that an earlier version wrote is carried out as it is.
    kept = {**options_to_json(EraseOptions()), **given}
    asked = planned_options(planned(kept), EraseOptions())
    assert json.loads(json.dumps(options_to_json(asked))) == kept


def test_what_nobody_should_ask_for_is_refused_before_anything_is_planned(home: Home) -> None:
    entry = small.receive(home)
    with Journal(home.journal, read_only=True) as journal:
        request = journal.request(entry.id)
    for wrong in (EraseOptions(max_rounds=0), EraseOptions(methods=("fine-tune",))):
        with pytest.raises(ConfigError, match=r"at least 1 after|is a baseline"):
            small.erase(home, entry.id, how=wrong)
        with pytest.raises(ConfigError, match=r"at least 1 after|is a baseline"):
            erase.plan(home, SimulatedBackend(home), request, options=wrong, now=NOW)
    assert small.way(home) == ["received"]


def test_no_rounds_may_be_wished_for_where_nothing_is_taken_from_the_leaver() -> None:
    given = {"max_rounds": 0, "untrusted_leaver": True}
    assert options_from_json(given) == EraseOptions(max_rounds=0, untrusted_leaver=True)
    assert options_from_json({"max_rounds": 0, "min_rounds": 0}).max_rounds == 0


def test_the_last_plan_has_the_options_and_others_count_only_before_the_first() -> None:
    kept = [options_to_json(EraseOptions(max_rounds=rounds)) for rounds in (3, 4)]
    assert planned_options(planned(*kept), EraseOptions()).max_rounds == 4
    assert planned_options(planned(), OPTIONS) is OPTIONS


def test_options_that_no_plan_had_differ_and_an_accepted_loss_does_not_count() -> None:
    kept = [options_to_json(EraseOptions(max_rounds=rounds)) for rounds in (3, 4)]
    for rounds, differ in ((3, False), (4, False), (5, False), (6, True)):  # 5: the default
        given = EraseOptions(max_rounds=rounds, accept_loss="consent withdrawn")
        assert differ_from_plans(planned(*kept), given) is differ
    assert not differ_from_plans(planned(), OPTIONS)


def stopped(home: Home, number: int, how: EraseOptions) -> None:
    def tell(line: str) -> None:
        if line.startswith("planned"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small.erase(home, number, how=how, tell=tell)


def test_planning_again_keeps_what_was_asked_for(home: Home) -> None:
    entry = small.receive(home)
    stopped(home, entry.id, EraseOptions(untrusted_leaver=True, backups_until=later(days=90)))
    small.erase(home, small.receive(home, "site-1").id)
    outcome = small.erase(home, entry.id, how=EraseOptions())
    assert small.way(home)[:3] == ["received", "planned", "planned"]
    assert "local-step" not in small.way(home)
    assert outcome.rung in ("server-side", "retraining")
    (left,) = small.told(home)["remaining"]
    assert left["until"] == "2027-02-13T12:00:00Z"


def test_nobody_is_waited_for_beyond_the_due_date(home: Home) -> None:
    entry = small.receive(home)
    with Journal(home.journal, read_only=True) as journal:
        request = journal.request(entry.id)
    how = small.options(wait=timedelta(days=365))
    plan = erase.plan(home, SimulatedBackend(home), request, options=how, now=NOW)
    assert plan.wait_until == "2026-12-15T12:00:00Z"
    overdue = erase.plan(home, SimulatedBackend(home), request, options=how, now=later(days=40))
    assert overdue.wait_until is None


def test_a_dry_run_refuses_an_expired_request_that_was_never_taken(home: Home) -> None:
    request = unverified_request(small.ask(home))
    ground = SimulatedBackend(home)
    erase.plan(home, ground, request, options=EraseOptions(), now=NOW)
    with pytest.raises(RequestError, match="expired"):
        erase.plan(home, ground, request, options=EraseOptions(), now=later(days=8))


def test_more_methods_than_a_plan_holds_are_a_plain_error(home: Home) -> None:
    entry = small.receive(home)
    with pytest.raises(ConfigError, match="no plan can be made of these options: ladder"):
        small.erase(home, entry.id, how=EraseOptions(methods=("projected-ascent",) * 9))
    assert small.way(home) == ["received"]


def test_a_plan_for_as_many_clients_as_a_federation_may_have_can_be_read(home: Home) -> None:
    entry = small.receive(home)
    with Journal(home.journal, read_only=True) as journal:
        request = journal.request(entry.id)
    plan = erase.plan(home, SimulatedBackend(home), request, options=small.options(), now=NOW)
    names = tuple(f"hospital-of-the-northern-region-{n:06d}".ljust(64, "x") for n in range(100_000))
    large = plan.model_copy(update={"retained": names})
    assert home.load_plan(home.save_plan(large)) == large
    row = large.body(0)
    assert (len(row.clients), row.client_count, row.plan) == (4096, 100_000, large.digest())
