"""Lines that end with names."""

from __future__ import annotations

from harness.erasure.small import NOW
from secede.erasure.storage.journal_entries import Transition
from secede.erasure.storage.progress import POST_TRAINING
from secede.erasure.workflow.session import _words
from secede.text import LINE, listed

NAMES = [f"encoder.layers.{number}.attention.weight" for number in range(40)]


def test_all_names_are_told_where_there_is_room() -> None:
    assert listed("without: ", ["a", "b"]) == "without: a, b"
    assert listed("without: ", ["a", "b"], 3) == "without: a, b and 1 more"


def test_no_name_is_cut_and_the_others_are_counted() -> None:
    told = listed("without: ", NAMES, 1234)
    assert len(told) < LINE
    shown, more = told.removeprefix("without: ").split(" and ")
    names = shown.split(", ")
    assert names == NAMES[: len(names)]
    assert more == f"{1234 - len(names):,} more"


def test_a_name_that_is_longer_than_a_line_is_counted_alone() -> None:
    assert listed("without: ", ["a" * LINE]) == "without: 1 more"


def test_what_cannot_be_printed_is_not() -> None:
    assert listed("", ["a\x1b[31m\n"]) == "a?[31m?"


def test_a_rounds_line_cuts_no_name_of_what_could_not_fade() -> None:
    scalars = {"accuracy": 0.5, "faded": 0.25, "unfaded": 39, "cleared": 1}
    details = {"round": 1, "scalars": scalars, "unfaded": NAMES[:-1], "cleared": NAMES[-1:]}
    done = Transition(request=1, number=4, state=POST_TRAINING, at=NOW, details=details)
    told = _words(done, "post-training")
    names = told.partition(", these could not fade: ")[2].partition(" and ")[0].split(", ")
    assert names == NAMES[: len(names)]
    assert told.endswith(f" and {40 - len(names)} more")
