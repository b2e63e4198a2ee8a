from __future__ import annotations

from benchmarks.canaries.erasures import cells
from benchmarks.canaries.weak_methods import FineTuneAlone, ReferenceAlone
from secede.erasure.planning.options import EraseOptions, check_options
from secede.unlearning import create


def row(**changes: object) -> dict[str, object]:
    plain = {"rung": "local-step", "p": 1e-7, "rounds": 4, "failed": []}
    return plain | {"looks": ["no-trace-found"], "rungs": ["local-step"]} | changes


def test_a_line_says_where_a_trace_was_found_and_how_it_ended() -> None:
    looks = {"looks": ["trace-found"] * 2 + ["no-trace-found"], "rounds": 22}
    rungs = {"rungs": ["server-side"] * 2 + ["retraining"], "rung": "retraining"}
    assert cells("x", [row(), row(**looks, **rungs, p=1e-5)]) == [
        "x",
        "1e-07 to 1e-05",
        "1 of 2",
        "",
        "2 of 2",
        "local-step 1, retraining 1",
        "1 to 3",
        "4 to 22",
    ]


def test_a_rung_that_failed_before_anybody_read_is_named() -> None:
    failed = row(failed=["reference: too near"], rungs=["server-side"], rung="server-side")
    assert cells("x", [failed, row()])[3] == "reference: too near (1)"


def test_baselines_can_be_forced_under_other_names() -> None:
    for cls in (FineTuneAlone, ReferenceAlone):
        name = f"{cls.__module__}:{cls.__name__}"
        check_options(EraseOptions(methods=(name,)))
        assert create(name)[0].name == name
