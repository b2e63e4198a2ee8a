from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from secede.reports.records.load import load_runs, merge_runs
from secede.reports.records.runs import Run

Make = Callable[..., Run]
ASCENT, OTHERS = ("projected-ascent",), ("fine-tune", "reference")


@pytest.fixture
def two(make_run: Make) -> tuple[Run, Run]:
    """The same federation and retraining; other methods."""
    return make_run(methods=ASCENT), make_run(methods=OTHERS)


def test_other_methods_on_the_same_models_are_one_run(two: tuple[Run, Run]) -> None:
    (run,) = merge_runs(two)
    assert run.config.methods == (*ASCENT, *OTHERS)
    assert run.erased == "projected-ascent"
    assert run.scores("reference", 1, "attack_success") == two[1].scores(
        "reference", 1, "attack_success"
    )
    assert {arm for arm, _ in run.seeds[0].membership} >= {"projected-ascent", "fine-tune"}
    first, second = (one.seeds[0] for one in two)
    spent = sum(second.curves[arm][-1].cost.seconds for arm in OTHERS)
    assert run.seeds[0].seconds == first.seconds + spent


def test_a_method_as_it_is_comes_before_variants(make_run: Make) -> None:
    variant = make_run(methods=OTHERS)
    methods = ("fine-tune@slow", "reference")
    variant = replace(variant, config=replace(variant.config, methods=methods))
    for runs in permutations((variant, make_run(methods=ASCENT))):
        (run,) = merge_runs(runs)
        assert run.config.methods == (*ASCENT, *methods)
        assert run.erased == "projected-ascent"


def test_a_method_that_both_have_is_there_once(make_run: Make) -> None:
    (run,) = merge_runs([make_run(methods=("fine-tune", *ASCENT)), make_run(methods=OTHERS)])
    assert run.config.methods == ("fine-tune", "projected-ascent", "reference")


def test_other_seeds_titles_or_states_stay_apart(make_run: Make, two: tuple[Run, Run]) -> None:
    fewer = make_run(methods=OTHERS, seeds=(0, 1), name="fewer")
    other = two[1]
    named = replace(other, config=replace(other.config, title="another"))
    curve = other.seeds[0].curves["retrain"]
    elsewhere = (replace(curve[0], digest="0" * 64), *curve[1:])
    seed = replace(other.seeds[0], curves={**other.seeds[0].curves, "retrain": elsewhere})
    moved = replace(other, seeds=(seed, *other.seeds[1:]))
    for apart in (replace(fewer, config=other.config), named, moved):
        assert merge_runs([two[0], apart]) == (two[0], apart)


def test_a_folder_of_runs_is_read_joined(two: tuple[Run, Run], tmp_path: Path) -> None:
    (run,) = load_runs([tmp_path / "runs"]).runs
    assert set(run.config.methods) == {*ASCENT, *OTHERS}
