from __future__ import annotations

import pytest

from harness.erasure import page_cases, papers
from secede.erasure.receipts.answers import (
    Answer,
    answers,
    describe_difference,
    describe_duration,
    remaining_limits,
    show_p,
)
from secede.erasure.receipts.verify import Verified
from secede.erasure.workflow import measurement
from secede.flower.backend import IN_DATABASE, RETURNED_OPENLY


def told(verified: Verified) -> tuple[Answer, ...]:
    return answers(verified.statement.predicate)


def plain(answer: Answer) -> str:
    return " ".join((answer.title, *answer.said, *answer.steps)).replace("\u00a0", " ")


def test_four_answers_say_when_forgotten_useful_and_what_remains() -> None:
    erased, forgotten, useful, remains = told(page_cases.no_trace())
    assert [erased.tone, forgotten.tone, useful.tone, remains.tone] == ["yes", "yes", "yes", "open"]
    assert plain(erased).startswith("Erased on 15 November 2026, in time")
    assert "due by 3 December 2026; completed 12 days after receipt" in plain(erased)
    assert "deleted 7 kinds of things, the last on 15 November 2026" in plain(erased)
    assert "97.4\u202f%; before 98.0\u202f%. That is 0.6 points lower." in plain(useful)
    assert "up to 5 points over all samples was allowed, and 10 of a class." in plain(useful)
    assert plain(remains).startswith("In backups until 15 December 2026")
    assert "hold the model from before." in plain(remains)


def test_no_trace_has_its_numbers_and_what_retraining_would_show() -> None:
    _, forgotten, _, _ = told(page_cases.no_trace())
    assert forgotten.title == "No trace found"
    ranks, retraining, reason = forgotten.said
    assert "put 32 canaries among its samples; a secret coin drew the label of each" in ranks
    assert "is 1.84 of 10 in the old model, 5.50 in the new one, and 5.50 by chance" in ranks
    assert "its mean rank would be 5.50" in retraining
    assert "at most 1 in 100 such models would be called a trace" in retraining
    assert "at most 69 % of cases: chance is 50 %, before it was 91 %." in reason
    assert forgotten.steps == ()


def test_a_trace_is_not_made_to_look_better_and_says_what_to_do() -> None:
    erased, forgotten, useful, remains = told(page_cases.trace())
    assert (erased.tone, forgotten.tone, useful.tone) == ("no", "no", "no")
    assert plain(erased).startswith("Erased on 7 December 2026, late")
    assert "after the due date" in plain(erased)
    assert forgotten.title == "Not forgotten: a trace was found"
    assert "Do not take the erasure for done" in forgotten.steps[0]
    assert "secede erase --retrain" in forgotten.steps[1]
    assert useful.title == "Less useful than allowed"
    assert remains.title == "No backups are stated"


def test_retraining_is_forgotten_by_construction_and_not_by_measurement() -> None:
    verified = page_cases.retrained()
    _, forgotten, _, _ = told(verified)
    assert (forgotten.tone, forgotten.title) == ("yes", "Forgotten by construction")
    assert "was not measured" in plain(forgotten)
    assert "do not show in it (p = 0.51)" in plain(forgotten)


def test_canaries_that_show_after_retraining_are_told() -> None:
    last = page_cases.look(page_cases.FADED, 24, 5, papers.AFTER, "retraining")
    method = page_cases.METHOD.model_copy(update={"rung": "retraining", "name": "retrain"})
    found = page_cases.case("by-construction", page_cases.canaries(last), method=method)
    assert "show all the same (p = 4.3e\u201105)" in plain(told(found)[1])


@pytest.mark.parametrize(
    ("case", "reason", "step"),
    [
        (page_cases.not_planted, "The client planted no canaries", "plant canaries before"),
        (page_cases.not_there, "The client was not there", "cannot show that there is none"),
        (page_cases.no_power, "The test has no power here", "more of them, or more copies"),
    ],
)
def test_undetermined_says_why_and_what_to_do(case: object, reason: str, step: str) -> None:
    assert callable(case)
    _, forgotten, _, _ = told(case())
    assert (forgotten.tone, forgotten.title) == ("open", "Forgetting: undetermined")
    assert forgotten.said[0].startswith(reason)
    assert "none was ruled out" in forgotten.said[1]
    assert step in " ".join(forgotten.steps)
    assert "secede erase --retrain" in " ".join(forgotten.steps)


def test_usefulness_that_nobody_can_tell_says_so() -> None:
    _, _, useful, _ = told(page_cases.not_planted())
    assert useful.tone == "open"
    assert "too few to tell" in plain(useful)


def test_what_stays_is_told_from_the_other_limits() -> None:
    stays = (
        measurement.FINGERPRINTS,
        measurement.STALE,
        measurement.KEPT,
        measurement.STAYED.format(count=3) + "conv1",
        measurement.CLEARED.format(count=3) + "conv1",
        IN_DATABASE,
    )
    others = (
        measurement.ITSELF,
        measurement.NOTHING,
        measurement.LOST.format(reason="it lost"),
        measurement.SHOWN,
        measurement.UNSIGNED,
        measurement.FROM_BEFORE.format(trace=""),
        measurement.REMOVED.format(share=0.02, count=6),
        measurement.HIDDEN,
        RETURNED_OPENLY,
    )
    found = page_cases.case(
        "no-trace-found", page_cases.canaries(page_cases.LAST), further_limits=(*others, *stays)
    )
    assert set(remaining_limits(found.statement.predicate)) == set(stays)


@pytest.mark.parametrize(
    ("value", "reference", "said"),
    [(0.963, 0.965, "0.2 points lower"), (0.5, 0.5, "the same"), (1, 0, "100.0 points higher")],
)
def test_a_difference_is_that_of_the_printed_numbers(
    value: float, reference: float, said: str
) -> None:
    assert describe_difference(value, reference) == said


def test_a_small_p_value_does_not_break_at_its_hyphen() -> None:
    assert show_p(4.83e-16) == "4.8e\u201116"
    assert show_p(0.5123) == "0.51"


@pytest.mark.parametrize(
    ("completed", "said"),
    [
        ("2026-11-03T10:00:00Z", "on the day of receipt, 30 days before it was due"),
        ("2026-11-03T23:59:59Z", "on the day of receipt, 30 days before it was due"),
        ("2026-11-04T10:00:00Z", "1 day after receipt, 29 days before it was due"),
        ("2026-12-03T10:00:01Z", "30 days after receipt, after the due date"),
    ],
)
def test_the_law_s_clock_is_told(completed: str, said: str) -> None:
    request = papers.statement().predicate.request.model_copy(update={"completed": completed})
    assert describe_duration(request) == said
