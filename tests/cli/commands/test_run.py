from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from harness import tiny
from harness.commands import secede
from harness.paths import ROOT
from secede.reports import build
from secede.reports.figures.catalogue import make_plots


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures: what is read is the terminal's part."""
    monkeypatch.setattr(build, "make_plots", lambda *_: [])


def test_a_report_on_many_runs_is_a_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    # All thirty are drawn in tests/reports/test_build.py.
    monkeypatch.setattr(build, "make_plots", lambda *given: make_plots(*given)[:1])
    with tarfile.open(ROOT / "docs" / "records" / "natural.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    told = secede("report", "natural", cwd=tmp_path).stdout
    assert (
        "Of 8 runs, erased by second choice, the leaver is forgotten as by retraining in "
        in " ".join(told.split())
    )
    assert len(told.splitlines()) < 40
    assert re.search(r"alone has 8s +Second choice +2 +yes +yes +yes", told)
    three = [path.name for path in sorted((tmp_path / "natural").iterdir())[:3]]
    few = secede("report", *(f"natural/{name}" for name in three), cwd=tmp_path).stdout
    assert few.count("Is the model still useful?") == 3


@pytest.mark.usefixtures("_undrawn")
def test_nothing_in_a_strangers_records_steers_the_terminal_or_a_spreadsheet(
    tmp_path: Path,
) -> None:
    with tarfile.open(ROOT / "docs" / "records" / "natural.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    run = sorted((tmp_path / "natural").iterdir())[0]
    config = json.loads((run / "config.json").read_text())
    config["title"] = "\x1b]0;owned\x07 \x9b2J [link=http://evil.example]x[/link] \u202e <script>"
    config["name"] = "=HYPERLINK(1)"
    (run / "config.json").write_text(json.dumps(config))
    hostile = run.rename(run.with_name("\x1b[2Jrun"))
    (hostile / "seed-\x1b[2J9").mkdir()  # no seed, as it has no number
    shutil.copytree(hostile, run)
    for result in run.glob("seed-*/result.json"):
        result.unlink()
    unfinished = run.rename(run.with_name("\x1b[2Jcut"))
    both = (str(hostile), str(unfinished), "--out", str(tmp_path / "out"))
    told = secede("report", *both).stdout
    assert "not finished, left out: ?[2Jcut" in told
    assert "[link=http://evil.example]x[/link]" in "".join(told.split("\n"))
    told += secede("report", str(hostile), "--json", "--out", str(tmp_path / "out")).stdout
    (hostile / "config.json").write_text("{")
    told += secede("report", str(hostile), "--out", str(tmp_path / "out")).stderr
    assert "config.json, line 1: not JSON" in told
    assert [c for c in set(told) if not c.isprintable() and c not in "\n\xa0"] == []
    assert "\n'=HYPERLINK(1)," in (tmp_path / "out" / "tables" / "models.csv").read_text()
    assert "\n=HYPERLINK" not in (tmp_path / "out" / "tables" / "models.csv").read_text()
    assert "\\<script>" in (tmp_path / "out" / "tables" / "methods.md").read_text()


@pytest.mark.usefixtures("_undrawn")
def test_other_methods_may_be_run_where_the_files_own_cannot(tmp_path: Path) -> None:
    gone = "situation.leaver_online = false\n"
    tiny.write(tmp_path, gone + tiny.CONFIG)
    refused = secede("run", "tiny.toml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "weight-negation" in refused.stderr
    ended = secede("run", "tiny.toml", "--method", "weight-negation", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    again = secede("run", "tiny.toml", "--method", "projected-ascent", cwd=tmp_path)
    assert again.returncode == 2
    assert "needs the leaver online" in again.stderr


def test_five_lines_run_a_users_own_data_and_model_through_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write(tmp_path)
    lines = (
        'data = "tiny.npz"',
        'model = "tiny_model:build"',
        "clients.count = 3",
        'scenario = { name = "backdoor", share = 0.5 }',
        "training = { rounds = 3, learning_rate = 0.1, batch_size = 16 }",
    )
    assert len(lines) == 5
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ended = secede("run", "../mine.toml", cwd=elsewhere)
    assert ended.returncode == 0, ended.stderr
    assert "Is the leaver forgotten" in ended.stdout
    page = Path(ended.stdout.rpartition("Report: ")[2].strip())
    assert "<html" in page.read_text()
    assert (page.parent / "figures").is_dir()
    monkeypatch.setattr(build, "make_plots", lambda *_: [])  # drawn once is enough
    again = secede("run", "../mine.toml", "--json", cwd=elsewhere)
    assert "finished already, not computed again" in again.stderr
    found = json.loads(again.stdout)
    assert found["runs"][0]["seeds"] == 1
    assert set(found["runs"][0]["models"]) >= {"FedAvg, 3 rounds", "Retrained, 3 rounds"}


def test_a_missing_data_file_and_a_broken_model_name_what_is_wrong(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    (tmp_path / "a.toml").write_text('data = "absent.npz"')
    ended = secede("run", "a.toml", cwd=tmp_path)
    assert (ended.returncode, "absent.npz: no such file" in ended.stderr) == (3, True)
    (tmp_path / "b.toml").write_text(
        'data = "tiny.npz"\nmodel = "tiny_model:absent"\nscenario.share = 0.3'
    )
    ended = secede("run", "b.toml", cwd=tmp_path)
    assert (ended.returncode, "has no 'absent'" in ended.stderr) == (2, True)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "c.toml").write_text('data = "tiny.npz')
    ended = secede("run", "c.toml", cwd=tmp_path)
    assert (ended.returncode, "c.toml: not valid TOML" in ended.stderr) == (2, True)


def test_a_place_that_cannot_be_written_has_its_exit_code(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    (tmp_path / "file").write_text("in the way")
    ended = secede("run", "tiny.toml", "--out", "file/runs", cwd=tmp_path)
    assert ended.returncode == 6, ended.stderr
    assert "cannot write" in ended.stderr


def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    tiny.write(tmp_path, tiny.CONFIG.replace("rounds = 3", "rounds = 100000"))
    process = subprocess.Popen(
        [sys.executable, "-c", "from secede.cli import main; main()", "run", "tiny.toml"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/seed-0/curves.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the same command continues from here" in text


@pytest.mark.usefixtures("_undrawn")
def test_the_terminal_table_fits_80_columns_uncut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    methods = 'methods = ["second-choice", "projected-ascent"]\n'
    tiny.write(tmp_path, tiny.CONFIG.replace("backdoor", "flipped") + methods)
    ended = secede("run", "tiny.toml", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "…" not in ended.stdout
    assert max(map(len, ended.stdout.splitlines()[:12])) <= 80
    # Folded, and not a word lost.
    assert re.search(r"^  Projected ascent, 2 .*\n  rounds *$", ended.stdout, re.M)
    assert "Erased, 0 rounds" in ended.stdout
    assert "(erased: second choice)" in ended.stdout
    monkeypatch.setenv("COLUMNS", "100")
    assert "  Projected ascent, 2 rounds  " in secede("run", "tiny.toml", cwd=tmp_path).stdout
