import csv
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.paths import ROOT
from secede.errors import RecordError, StorageError
from secede.reports import build
from secede.reports.build import Report, write_report

Write = Callable[..., Path]


def test_a_report_is_a_page_figures_and_tables(report: Report) -> None:
    out = report.page.parent
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    slugs = ("efficacy", "membership-n5", "clean-accuracy", "communication-n5", "rounds-n5")
    figures = {
        f"figures/backdoor-{slug}.{form}"
        for slug in (*slugs, "methods-n5")
        for form in ("svg", "png")
    }
    tables = {f"tables/{name}.csv" for name in ("models", "costs", "membership", "methods")}
    tables.add("tables/methods.md")
    assert written == {"index.html"} | figures | tables
    named = {path.relative_to(out).as_posix() for path in (*report.figures, *report.tables)}
    assert named == figures | tables


def test_a_report_returns_its_verdicts_and_what_it_left_out(report: Report) -> None:
    ((run, verdict),) = report.verdicts
    assert run.config.name == "paper/mnist-backdoor-5"
    assert verdict.round == 2
    (left_out,) = report.unfinished
    assert left_out.endswith("/seed-3")


def test_the_tables_hold_every_row_of_the_page(report: Report) -> None:
    with report.tables[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9 * 9
    assert {row["run"] for row in rows} == {"paper/mnist-backdoor-5"}
    assert all(float(row["mean"]) >= 0 for row in rows)


def test_progress_hears_of_every_figure_and_a_second_report_is_the_same(
    report: Report, tmp_path: Path
) -> None:
    heard: list[tuple[int, int]] = []
    runs = report.page.parents[1] / "runs"
    again = write_report([runs], tmp_path / "out", progress=lambda *at: heard.append(at))
    assert heard == [(done, 6) for done in range(1, 7)]
    for one, other in zip(
        (report.page, *report.figures, *report.tables),
        (again.page, *again.figures, *again.tables),
        strict=True,
    ):
        assert one.read_bytes() == other.read_bytes(), one.name


@pytest.mark.slow
def test_several_processes_draw_the_same_figures(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "FIGURES_WORTH_A_PROCESS", 1)
    runs = report.page.parents[1] / "runs"
    again = write_report([runs], tmp_path / "out", processes=2)
    for one, other in zip(
        (report.page, *report.figures), (again.page, *again.figures), strict=True
    ):
        assert one.read_bytes() == other.read_bytes(), one.name


@pytest.mark.slow
def test_every_figure_of_a_suites_records_is_drawn(tmp_path: Path) -> None:
    with tarfile.open(ROOT / "docs" / "records" / "natural.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    written = write_report([tmp_path / "natural"], tmp_path / "out", processes=2)
    assert len(written.figures) == 2 * 30
    assert all(path.stat().st_size > 5000 for path in written.figures)
    assert written.page.read_text().count("<figure") == 30


def test_methods_are_compared_in_csv_and_in_markdown(report: Report) -> None:
    tables = {path.name: path for path in report.tables}
    with tables["methods.csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["arm"] for row in rows} == {
        "fedavg",
        "retrain",
        "projected-ascent",
        "fine-tune",
        "reference",
    }
    erased = {row["quantity"]: row for row in rows if row["arm"] == "projected-ascent"}
    assert "as retrained" in erased["from_retraining_last"]["note"]
    assert "best" in erased["from_retraining_last"]["note"]
    text = tables["methods.md"].read_text()
    assert text.startswith(
        "## MNIST, backdoor, N=5\n\n| Method | needs | clean accuracy, 1 round |"
    )
    assert "| Fine-tuned | nothing | **" in text
    assert "Bold: the best method of a column" in text


def test_runs_that_share_methods_are_compared_in_a_table_of_their_own(
    write_run: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "make_plots", lambda *_: [])  # tables alone
    first = write_run(seeds=(0,), rounds=2, post_rounds=1, methods=("fine-tune",))
    write_run(seeds=(0,), rounds=2, post_rounds=1, methods=("fine-tune",), clients=10)
    written = write_report([first.parent], tmp_path / "out").tables[-1]
    assert written.name == "comparison.md"
    assert "N=10 (clean accuracy / attack success)" in written.read_text()


def test_a_damaged_record_leaves_nothing_behind(write_run: Write, tmp_path: Path) -> None:
    folder = write_run(seeds=(0,))
    (folder / "seed-0" / "curves.jsonl").write_text("{")
    with pytest.raises(RecordError, match="line 1"):
        write_report([folder], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_named(write_run: Write, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StorageError, match="cannot write"):
        write_report([write_run(seeds=(0,), rounds=2, post_rounds=1)], tmp_path / "out")


def test_no_report_imports_torch_and_the_terminals_part_no_matplotlib() -> None:
    code = (
        "import sys, secede.reports.tables.scores, secede.reports.analysis.verdict\n"
        "import secede.reports.records.load\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import secede.reports.build\n"
        "assert 'matplotlib.figure' in sys.modules\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
