"""The tables of the comparison are what the committed records say, and have not lost their rows."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from benchmarks import archives, records
from secede.experiments import presets
from secede.experiments.fingerprint import source_of
from secede.reports.records.runs import Run
from secede.reports.tables import overview

BLOCKS = {"README.md": 1, "comparison.md": 29, "comparison-tables.md": 10, "explored.md": 14}
# Added when no GPU was at hand; asked in small (records `classes` and `perceptron`).
UNMEASURED = {"mnist-nearly-5"}
README = archives.RECORDS / "README.md"
RUNS = {"paper": 10, "natural": 8, "history": 11, "slow": 11, "fashion": 6, "digits": 3}
SMALL = {"explored": 2, "again": 2, "classes": 2, "benign": 2, "perceptron": 5, "others": 7}


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


def test_records_are_of_five_seeds_with_all_cells() -> None:
    for name, cells in (("paper", presets.PAPER), ("natural", presets.NATURAL)):
        measured = {run.config.name.split("/")[1] for run in archives.load(name)}
        assert measured == {*cells} - UNMEASURED
    assert len(RUNS) == len(SMALL) == 6  # as their README says
    for name, count in (RUNS | SMALL).items():
        runs = archives.load(name)
        assert len(runs) == count
        assert all([seed.seed for seed in run.seeds] == [0, 1, 2, 3, 4] for run in runs)


@pytest.mark.parametrize(("names", "place"), [(RUNS, 0), (SMALL, 1)], ids=["first", "others"])
def test_records_are_of_the_commit_that_is_named_and_there(
    names: dict[str, int], place: int, tmp_path: Path
) -> None:
    if git("rev-parse", "--is-shallow-repository") != b"false\n":
        pytest.skip("no history here")
    (source,) = {
        seed.environment["source"]
        for name in names
        for run in archives.load(name)
        for seed in run.seeds
    }
    told = r"The first six at commit ([0-9a-f]{7}), the six others at ([0-9a-f]{7})\."
    (commits,) = re.findall(told, README.read_text())
    with tarfile.open(fileobj=io.BytesIO(git("archive", commits[place], "src/secede"))) as archive:
        archive.extractall(tmp_path, filter="data")
    assert source_of(tmp_path / "src" / "secede") == source


def git(*arguments: str) -> bytes:
    ended = subprocess.run(["git", *arguments], cwd=records.ROOT, capture_output=True, check=False)
    return ended.stdout


def test_where_two_records_have_second_choice_it_ended_alike() -> None:
    # `joined` refuses models that differ.
    for run in archives.joined("explored+again"):
        assert {"second-choice", "second-choice@ball", "twice:Twice"} <= {*run.config.methods}
        assert len({*run.config.methods}) == len(run.config.methods)


def test_two_records_of_an_experiment_have_all_methods_of_its_suite() -> None:
    both = archives.joined("history+slow")
    measured = {run.config.name.split("/")[1] for run in both}
    assert measured == {*presets.SUITES["history"]} - UNMEASURED
    methods = presets.load(f"history/{presets.PAPER[0]}").methods
    for run in both:
        assert sorted(run.config.methods) == sorted(methods)
        assert all(len(seed.curves[arm]) > 10 for seed in run.seeds for arm in run.config.arms)


def test_records_whose_models_differ_are_not_one_experiment() -> None:
    with pytest.raises(SystemExit, match="backdoor, 5 clients: the records differ in FedAvg"):
        archives.joined("paper+history")


def test_methods_of_other_records_are_counted_by_what_the_tables_say() -> None:
    block = "<!-- paper: beside; history+slow -->\n<!-- end -->\n"
    rows = {row[0]: row for row in _cells(records.written(block))}
    # After ten rounds it leaves most of a backdoor, and is further away than ours on all cells.
    assert (rows["Reference"][4], rows["Reference"][7]) == ("10 of 10", "0 of 10")
    # From scratch, a round is worth 2.8 to 5.2 rounds, and ours 8.6 or more.
    assert rows["Rapid retrain"][7:] == ("10 of 10", "10 (10, 10) of 10", "0 of 10")


def test_surely_is_corrected_for_all_that_the_records_ask() -> None:
    text = records.written("<!-- paper: nearer -->\n<!-- end -->\n")
    sure = [cell for row in _cells(text)[2:] for cell in (row[2], row[3], row[5], row[6])]
    found = [re.match(r"(\d+) \((\d+), (\d+)\)", cell) for cell in sure]
    counts = [sum(int(each[place]) for each in found if each) for place in (1, 2, 3)]
    first, *others = dict.fromkeys(m for run in archives.load("paper") for m in run.config.methods)
    asked = sum(
        any(a != b for a, b in _moved(run, first, other, end))
        for run in archives.load("paper")
        for other in others
        for end in (1, None)
    )
    told = "338 times: 181 hits, 150 after Benjamini and Hochberg's correction, 36 after Holm's"
    assert told in (records.ROOT / "README.md").read_text()
    assert [asked, *counts] == [int(number) for number in re.findall(r"\d+", told)]


def _moved(run: Run, one: str, other: str, end: int | None) -> list[tuple[float, float]]:
    """Return both methods' distances from retraining, on either side, by seed."""
    both = (overview.distances(run, arm, end) for arm in (one, other))
    return [(abs(a), abs(b)) for a, b in zip(*both, strict=True)]


def test_a_run_that_retrains_twice_is_held_against_records_that_did_once(tmp_path: Path) -> None:
    with tarfile.open(archives.RECORDS / "digits.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    run = sorted((tmp_path / "digits").iterdir())[0]
    config = json.loads((run / "config.json").read_text())
    config["training"]["retrain_again"] = True
    (run / "config.json").write_text(json.dumps(config))
    for seed in run.glob("seed-*"):
        lines = (seed / "curves.jsonl").read_text().splitlines(keepends=True)
        again = [json.loads(line) for line in lines if json.loads(line)["arm"] == "retrain"]
        more = (json.dumps({**row, "arm": "retrain-again"}) + "\n" for row in again)
        (seed / "curves.jsonl").write_text("".join([*lines, *more]))
        result = json.loads((seed / "result.json").read_text())
        result["arms"]["retrain-again"] = result["arms"]["retrain"]
        (seed / "result.json").write_text(json.dumps(result))
    assert [differ for _, _, differ in archives.repeated([run])] == [0] * 5


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


def test_a_course_begins_and_ends_where_the_scores_do() -> None:
    *course, retrained = _cells(records.written("<!-- digits: course -->\n<!-- end -->\n"))[2:]
    scores = _cells(records.written("<!-- digits: scores -->\n<!-- end -->\n"))
    assert [row[0] for row in course] == [*scores[0]]  # turned: a method a row
    for method, row in enumerate(course):
        for run, cell in enumerate(row[1:]):
            after = cell.split(" → ")
            assert " → ".join((after[0], after[-1])) == scores[2 + run][1 + method]
    # The second and the fifth round by hand, and retraining after as many rounds.
    assert retrained[0] == "Retrained"
    for arm, row in (("second-choice", course[0]), ("retrain", retrained)):
        assert row[1] == " → ".join(_hand_gap(arm, round) for round in (1, 2, 5, 10))


def _hand_gap(arm: str, round: int) -> str:
    gaps = [
        seed.curves[arm][round].scores["attack_success"].value
        - seed.curves["retrain"][-1].scores["attack_success"].value
        for seed in archives.load("digits")[0].seeds
    ]
    return f"{100 * sum(gaps) / len(gaps):+.1f}".replace("-", "−")


@pytest.mark.parametrize(("kind", "turned"), [("further", "apart"), ("worth", "valued")])
def test_a_table_turned_says_the_same(kind: str, turned: str) -> None:
    methods = ("Virtual teacher", "Weight negation")
    wide, tall = (
        _cells(records.written(f"<!-- digits: {k}; {'; '.join(methods)} -->\n<!-- end -->\n"))
        for k in (kind, turned)
    )
    for place, method in enumerate(methods):
        assert tall[2 + place] == (method, *(row[1 + place] for row in wide[2:]))


def test_what_is_told_midway_is_of_the_second_and_fifth_round() -> None:
    found = _cells(records.written("<!-- digits: midway; Weight negation -->\n<!-- end -->\n"))
    ends = found[2][1].split(" → ")
    run = archives.load("digits")[0]
    assert (found[0][0], len(ends)) == (run.config.title, 2)  # the corner is empty
    for round, told in zip((2, 5), ends, strict=True):
        gaps = [
            abs(seed.curves[arm][round].scores["attack_success"].value - retrained) * sign
            for seed in run.seeds
            for retrained in [seed.curves["retrain"][-1].scores["attack_success"].value]
            for arm, sign in (("weight-negation", 1), ("second-choice", -1))
        ]
        mean = f"{100 * sum(gaps) / len(run.seeds):+.1f}".replace("-", "−")
        assert told.replace("*", "").startswith(f"{mean} (")


def test_two_methods_are_compared_with_each_other_where_both_are() -> None:
    shown = "Virtual teacher; Weight negation"
    found = _cells(records.written(f"<!-- digits+paper: between; {shown} -->\n<!-- end -->\n"))
    assert len(found) == 2 + 3 + 10
    gaps = [
        [
            abs(seed.curves[arm][1].scores["attack_success"].value - retrained)
            for arm in ("virtual-teacher", "weight-negation")
        ]
        for seed in archives.load("digits")[0].seeds
        for retrained in [seed.curves["retrain"][-1].scores["attack_success"].value]
    ]
    further = 100 * sum(there - here for here, there in gaps) / len(gaps)
    row = next(row for row in found if row[0] == "Digits of 8 by 8, backdoor")
    assert row[1].replace("*", "").startswith(f"{further:+.1f} (".replace("-", "−"))


def test_what_is_packed_is_what_was_recorded_without_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(archives.RECORDS / "digits.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = archives.load("digits")
    runs = sorted((tmp_path / "digits").iterdir())
    for kind in ("states", "evidence"):
        (runs[0] / "seed-0" / kind).mkdir()
        (runs[0] / "seed-0" / kind / "model.safetensors").write_bytes(b"large")
        (runs[0] / "seed-0" / kind / "model.json").write_bytes(b"large")
    monkeypatch.setattr(archives, "RECORDS", tmp_path)
    try:
        archives.pack("again", runs)
        found = archives.load("again")
        assert [(r.config, r.seeds) for r in found] == [(r.config, r.seeds) for r in expected]
        whole = (tmp_path / "again.tar.xz").read_bytes()
        (runs[1] / "seed-3" / "result.json").unlink()  # as it is before a seed is done
        for wrong, told in (
            ([], "nothing to pack"),
            ([tmp_path / "nowhere"], "config.json is missing"),
            (runs, "result.json is missing: only runs that are done"),
        ):
            with pytest.raises(SystemExit, match=told):
                archives.pack("again", wrong)
        with pytest.raises(SystemExit, match="'again-2' is no name"):
            archives.pack("again-2", runs[:1])
        assert (tmp_path / "again.tar.xz").read_bytes() == whole
    finally:
        archives.load.cache_clear()
    with tarfile.open(tmp_path / "again.tar.xz") as archive:
        packed = archive.getmembers()
    assert not [e.name for e in packed if "states" in e.name or "evidence" in e.name]
    assert {(e.mtime, e.mode, e.uid, e.uname) for e in packed} == {(0, 0o644, 0, "")}


def test_a_run_that_is_repeated_is_held_against_the_records_model_by_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(archives.RECORDS / "digits.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    run = sorted((tmp_path / "digits").iterdir())[0]
    (title, models, _), *others = archives.repeated([run])
    assert archives.repeated([run]) == [(title, models, 0), *others]
    assert [differ for _, _, differ in others] == [0] * 4
    curves = run / "seed-0" / "curves.jsonl"
    lines = curves.read_text().splitlines(keepends=True)
    assert models == len(lines)
    digest = json.loads(lines[7])["digest"]
    lines[7] = lines[7].replace(digest, "0" * len(digest))
    curves.write_text("".join(lines))
    assert archives.repeated([run]) == [(title, models, 1), *others]
    with pytest.raises(SystemExit) as ended:
        records.tell_repeated([run])
    assert ended.value.code == 1
    assert f"{title}: {models} models, 1 not as recorded" in capsys.readouterr().out
    config = run / "config.json"
    config.write_text(config.read_text().replace('"momentum": 0.9', '"momentum": 0.8'))
    with pytest.raises(SystemExit, match=r"no records have 'Digits of 8 by 8, .*' with these"):
        archives.repeated([run])
