from collections.abc import Callable

import pytest

from secede.reports.analysis.paper import STATED, compare_with_text, stated_levels
from secede.reports.records.runs import Run

Make = Callable[..., Run]

# 98.13 % after 6 rounds of post-training (25 uploads) and 17 of retraining (68 uploads), which
# is how the paper's 167 and 453 MB come about.
CLEAN = {
    "retrain": [0.1, 0.5, 0.6, 0.7, 0.8, 0.9, *[0.96] * 11, 0.982],
    "projected-ascent": [0.2, 0.953, 0.97, 0.97, 0.97, 0.97, 0.982],
}


@pytest.fixture
def papers_run(make_run: Make) -> Run:
    backdoor = {"projected-ascent": [0.1, 0.1138, *[0.1] * 5]}
    return make_run(
        rounds=17,
        post_rounds=6,
        fixed={"clean_accuracy": CLEAN, "backdoor_accuracy": backdoor},
    )


def test_the_papers_own_run_would_match_its_text(papers_run: Run) -> None:
    rows = compare_with_text([papers_run])
    assert [(row.stated, row.measured and round(row.measured.mean, 4)) for row in rows[:-1]] == [
        ("95.3 %", 0.953),
        ("11.38 %", 0.1138),
        ("more than 5", 6),
        ("167 MB", 166.337),
        ("453 MB", 452.4366),
        ("2.7×", 2.72),
    ]


def test_the_largest_ratio_is_sought_over_all_cells_of_the_report(
    papers_run: Run, make_run: Make
) -> None:
    slower = {
        "retrain": [0.1] * 17 + [0.953],
        "projected-ascent": [0.2, 0.953, *[0.99] * 5],
    }
    other = make_run(data="cifar10", rounds=17, post_rounds=6, fixed={"clean_accuracy": slower})
    row = compare_with_text([papers_run, other])[-1]
    assert (row.cell, row.stated) == ("Backdoor, all cells", "up to 24×")
    assert row.measured is not None
    assert row.measured.mean == pytest.approx(68 / 5)
    assert row.note == "CIFAR10, backdoor, N=5, round 1; of 2 cells in this report"


def test_a_level_that_was_never_reached_is_said(make_run: Make) -> None:
    flat = {"retrain": [0.9] * 5, "projected-ascent": [0.2, 0.9, 0.9]}
    run = make_run(scenario="flipped", rounds=4, post_rounds=2, fixed={"clean_accuracy": flat})
    rows = compare_with_text([run])
    assert [row.stated for row in rows] == ["566 MB", "1039 MB", "1.8×", "up to 5.8×"]
    assert [row.measured for row in rows[:3]] == [None, None, None]
    assert {row.note for row in rows[:3]} == {"never reached in 3 of the seeds"}


def test_fewer_images_than_the_papers_are_said(make_run: Make) -> None:
    rows = compare_with_text([make_run(limit=2000, clients=10)])
    assert rows[0].note == "on 2,000 images only"


def test_without_post_training_nothing_is_measured(make_run: Make) -> None:
    rows = compare_with_text([make_run(clients=10, post_rounds=0)])
    assert [row.measured for row in rows] == [None] * 4
    assert rows[0].note == "no post-training round was run"


def test_other_runs_are_not_held_against_the_paper(make_run: Make) -> None:
    run = make_run(name="mine")
    assert compare_with_text([run]) == ()
    assert stated_levels(run) == ()


def test_costs_are_stated_for_two_cells_at_one_accuracy(make_run: Make) -> None:
    cells = ("mnist-backdoor-5", "mnist-flipped-5", "mnist-backdoor-10")
    runs = [make_run(name=f"paper/{cell}", seeds=(0,)) for cell in cells]
    assert [stated_levels(run) for run in runs] == [(0.9813,), (0.9813,), ()]
    assert set(STATED) == {f"paper/{cell}" for cell in (*cells, "mnist-flipped-10")}


def test_the_paper_is_held_against_projected_ascent_even_if_another_is_judged(
    make_run: Make,
) -> None:
    clean = {**CLEAN, "second-choice": [0.9] * 7}
    methods = ("second-choice", "projected-ascent")
    run = make_run(rounds=17, post_rounds=6, methods=methods, fixed={"clean_accuracy": clean})
    rows = compare_with_text([run])
    assert rows[0].what == "clean accuracy, projected ascent, after 1 round"
    assert rows[0].measured is not None
    assert rows[0].measured.mean == pytest.approx(0.953)
    assert stated_levels(run) == (0.9813,)


def test_a_run_without_projected_ascent_is_not_held_against_the_paper(make_run: Make) -> None:
    run = make_run(seeds=(0,), methods=("second-choice", "fine-tune"))
    assert compare_with_text([run]) == ()
    assert stated_levels(run) == ()
