"""Details of transitions: read back as they were written, and refused where they are damaged."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.erasure import small
from secede.erasure.canonical_json import to_canonical
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.transition_details import read_transition
from secede.errors import RecordError


def test_every_transition_is_read_back_as_it_was_written(home: Home) -> None:
    how = small.options(max_rounds=0, measure_at_leaver=True)
    small.erase(home, small.receive(home).id, how=how)
    with Journal(home.journal, read_only=True) as journal:
        rows = journal.transitions(1)
    assert {row.state for row in rows} >= {"local-step", "guarded", "escalated", "server-step"}
    for row in rows:
        transition = read_transition(row)
        assert (transition.number, transition.state, transition.at) == (
            row.number,
            row.state,
            row.at,
        )
        assert to_canonical(transition.details.model_dump(mode="json")) == to_canonical(
            dict(row.details)
        )


@pytest.mark.parametrize(
    ("state", "change", "words"),
    [
        ("planned", {"plan": "another"}, "plan"),
        ("local-step", {"model": None}, "model"),
        ("post-training", {"round": -1}, "round"),
        ("post-training", {"colour": "red"}, "colour"),
        ("verified", {"limits": "none"}, "limits"),
        ("promoted", {"rung": "upstairs"}, "rung"),
    ],
)
def test_damaged_details_name_the_request_and_the_field(
    home: Home, state: str, change: dict[str, object], words: str
) -> None:
    small.erase(home, small.receive(home).id)
    with Journal(home.journal, read_only=True) as journal:
        row = next(row for row in journal.transitions(1) if row.state == state)
    place = f"transition {row.number} of request 1"
    with pytest.raises(RecordError, match=rf"damaged at {place} \(.*{words}.*restore it from"):
        read_transition(replace(row, details={**json.loads(json.dumps(row.details)), **change}))


def test_a_state_that_nobody_knows_is_damage(home: Home) -> None:
    small.receive(home)
    with Journal(home.journal, read_only=True) as journal:
        (row,) = journal.transitions(1)
    with pytest.raises(RecordError, match="unknown state 'dancing'"):
        read_transition(replace(row, state="dancing"))
