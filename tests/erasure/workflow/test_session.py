"""The session keeps progress and plan in memory, and logs a line for each transition."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from harness.erasure import small
from secede.erasure.documents.receipt import Software
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.transition_details import (
    ClassCounts,
    Exchange,
    GateResult,
    RoundDetails,
    UnusedWeights,
)
from secede.erasure.workflow.session import describe

NAMES = tuple(f"encoder.layers.{number}.attention.weight" for number in range(40))


def test_journal_and_plan_are_not_read_again_for_what_is_in_memory(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Counter[str]()

    def count(kind: type, name: str) -> None:
        genuine = getattr(kind, name)

        def counted(*args: Any, **how: Any) -> Any:
            reads[name] += 1
            return genuine(*args, **how)

        monkeypatch.setattr(kind, name, counted)

    entry = small.receive(home)
    for name in ("entry", "transitions", "entries", "ledger_head", "request"):
        count(Journal, name)
    count(Home, "load_plan")
    how = small.options(max_rounds=0, max_server_rounds=0)  # down to the last rung
    outcome = small.erase(home, entry.id, how=how)
    taken = dict(reads)
    assert (outcome.state, outcome.rung) == ("promoted", "retraining")
    transitions = len(small.way(home))
    assert transitions > 12
    assert taken.pop("load_plan") == 1
    assert sum(taken.values()) <= 2 * transitions


def test_an_extension_while_the_erasure_runs_is_in_the_receipt(home: Home) -> None:
    entry = small.receive(home)

    def extend(line: str) -> None:
        if line.startswith("guarded"):
            with Journal(home.journal) as journal:
                journal.extend(entry.id, 1, "a complex model", small.NOW)

    assert small.erase(home, entry.id, tell=extend).state == "promoted"
    assert small.told(home)["request"]["extended_to"] == "2027-01-15T12:00:00Z"


def test_a_rounds_line_cuts_no_name_of_a_weight_that_stayed() -> None:
    counts = ClassCounts(right=(1,), samples=(2,))
    details = RoundDetails(
        plan="a" * 64,
        model="b" * 64,
        state_file="b" * 64,
        software=Software(versions={}),
        round=1,
        trained_from="c" * 64,
        gate=GateResult(counts=counts, passed=True, reason="passed", vetoed=False),
        unused_weights=UnusedWeights(
            removed_share=0.25,
            zeroed=3,
            kept=NAMES[:-1],
            kept_count=39,
            cleared=NAMES[-1:],
            cleared_count=1,
        ),
        exchange=Exchange(),
    )
    line = describe(details, "post-training")
    assert line.startswith("post-training round 1: retained clients answer 50.0% right, 25% of")
    listed = line.partition(", these could not be removed: ")[2].partition(" and ")[0].split(", ")
    assert tuple(listed) == NAMES[: len(listed)]
    assert line.endswith(f" and {40 - len(listed)} more")
