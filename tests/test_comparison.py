"""The tables of the comparison are what the committed records say, and have not lost their rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import records
from secede.experiments import presets

BLOCKS = {"README.md": 1, "comparison.md": 23, "comparison-tables.md": 5}
RUNS = {"paper": 10, "natural": 8, "history": 11, "slow": 11, "fashion": 6, "digits": 3}


@pytest.mark.parametrize("page", records.PAGES, ids=lambda page: page.name)
def test_every_table_is_what_the_records_say(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(records.blocks(text)) == text.count("<!-- end -->") == BLOCKS[page.name]
    assert not list(records.differences(text))
    assert records.written(text) == text


def test_a_number_that_the_records_do_not_say_is_put_right() -> None:
    begin = "<!-- digits: scores; Second choice -->\n"
    right = records.written(f"{begin}<!-- end -->\n")
    assert right.startswith(f"{begin}|  | Second choice |\n| --- | ---: |\n| Digits of 8 by 8, ")
    wrong = right.replace("+5.5", "+0.5")
    assert wrong != right
    assert records.written(f"before\n{wrong}after\n") == f"before\n{right}after\n"


def test_records_are_of_five_seeds_and_one_version_with_all_cells() -> None:
    for name, cells in (("paper", presets.PAPER), ("natural", presets.NATURAL)):
        assert {run.config.name.split("/")[1] for run in records.load(name)} == {*cells}
    for name, count in RUNS.items():
        runs = records.load(name)
        assert len(runs) == count
        assert all([seed.seed for seed in run.seeds] == [0, 1, 2, 3, 4] for run in runs)
    every = (seed for name in RUNS for run in records.load(name) for seed in run.seeds)
    assert len({seed.environment["source"] for seed in every}) == 1


def test_two_records_of_an_experiment_have_all_methods_of_its_suite() -> None:
    both = records.joined("history+slow")
    assert {run.config.name.split("/")[1] for run in both} == {*presets.SUITES["history"]}
    methods = presets.load(f"history/{presets.PAPER[0]}").methods
    for run in both:
        assert sorted(run.config.methods) == sorted(methods)
        assert all(len(seed.curves[arm]) > 10 for seed in run.seeds for arm in run.config.arms)


def test_records_whose_models_differ_are_not_one_experiment() -> None:
    with pytest.raises(SystemExit, match="backdoor, 5 clients: the records differ in FedAvg"):
        records.joined("paper+history")


def test_methods_of_other_records_are_counted_by_what_the_tables_say() -> None:
    block = "<!-- paper: beside; history+slow -->\n<!-- end -->\n"
    rows = {row[0]: row for row in _cells(records.written(block))}
    # After ten rounds it leaves most of a backdoor, and is further away than ours on all cells.
    assert (rows["Reference"][4], rows["Reference"][7]) == ("10 of 10", "0 of 10")
    # From scratch, a round is worth 2.8 to 5.2 rounds, and ours 8.6 or more.
    assert rows["Rapid retrain"][7:] == ("10 of 10", "10 of 10", "0 of 10")


def _cells(text: str) -> list[tuple[str, ...]]:
    lines = [line.strip("| ") for line in text.splitlines() if line.startswith("| ")]
    return [tuple(cell.strip() for cell in line.split(" | ")) for line in lines]


def test_each_line_that_differs_is_told_with_what_the_records_say() -> None:
    right = records.written("<!-- digits: scores; Second choice -->\n<!-- end -->\n")
    (told,) = records.differences("a\n" + right.replace("+5.5", "+0.5"))
    assert told.startswith("5: | Digits of 8 by 8, backdoor | +0.5 → ")
    assert "\n  the records say: | Digits of 8 by 8, backdoor | +5.5 → " in told
    assert (
        len(list(records.differences(right.replace("<!-- end", "| one | more |\n<!-- end")))) == 1
    )


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("<!-- digits: sums -->", "no table 'sums'; expected one of: scores"),
        ("<!-- digits: scores; Third choice -->", "nothing is called 'Third choice' there"),
        ("<!-- digits: nearer; Third choice -->", "nothing is called 'Third choice' there"),
    ],
)
def test_what_is_not_there_is_named(block: str, told: str) -> None:
    with pytest.raises(SystemExit, match=told):
        records.written(f"{block}\n<!-- end -->\n")
