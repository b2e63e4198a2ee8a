from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness import audits
from harness.commands import secede

MODELS = ("--models", "8", "--jobs", "1")


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a folder with an audit of eight models, and what the command printed."""
    folder = tmp_path_factory.mktemp("audited")
    audits.write(folder)
    ended = secede("audit", "tiny.toml", *MODELS, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("finished after") == 8
    return folder, ended.stdout


@pytest.fixture
def folder(audited: tuple[Path, str], tmp_path: Path) -> Path:
    shutil.copytree(audited[0], tmp_path, dirs_exist_ok=True)
    audits.write(tmp_path)
    return tmp_path


def test_both_lines_and_the_scores_are_printed_and_the_page_written(
    audited: tuple[Path, str],
) -> None:
    printed = audited[1]
    for words in ("Samples: ", "Visibility: ", "U-LiRA", "told from retrained", "null", "again"):
        assert words in printed
    page = Path(printed.rpartition("Page: ")[2].strip())
    assert page.name == "audit.html"
    assert "with weights of four bits" in page.read_text()


def test_the_same_command_scores_again_without_training(folder: Path) -> None:
    ended = secede("audit", "tiny.toml", *MODELS, "--json", cwd=folder)
    assert "8 federations, 8 finished already and kept" in ended.stderr
    assert "finished after" not in ended.stderr
    found = json.loads(ended.stdout)
    assert (found["models"], found["method"]) == (8, "second-choice")
    assert list(found["variants"]) == ["as erased", "quantised"]
    plain = found["variants"]["as erased"]
    answers = {"indistinguishable", "distinguishable", "undetermined"}
    assert {plain["verdict"][line]["answer"] for line in ("samples", "visibility")} <= answers
    assert plain["scores"]["models"] == 8
    assert 0 <= plain["means"]["clean_accuracy"]["retrained"] <= 1
    assert Path(folder / found["page"]).is_file()
    assert len(found["federations"]) == 8


def test_a_method_and_options_make_another_audit(folder: Path) -> None:
    ended = secede(
        "audit",
        "tiny.toml",
        *MODELS,
        *("--method", "fine-tune", "--max-rounds", "1", "--no-quantised", "--relearn"),
        *("--train-on", "1", "--json"),
        cwd=folder,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["method"] == "fine-tune"
    assert list(found["variants"]) == ["as erased", "trained on"]
    assert "relearning_steps" in found["variants"]["as erased"]["means"]
    assert found["federations"][0]["erasure"] == {
        "rounds": 1,
        "rung": "server-side",
        "unused_weights": None,
    }
    assert len(list((folder / "runs").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tiny.toml", "--models", "3"], 2, "--models"),
        (["nonsense"], 2, "no preset 'nonsense'"),
        (["tiny.toml", "--method", "retrain"], 2, "'retrain' is always run"),
        (["tiny.toml", "--limit", "30"], 2, "30 test samples (limit is 30)"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(
    arguments: list[str], code: int, words: str, tmp_path: Path
) -> None:
    audits.write(tmp_path)
    ended = secede("audit", *arguments, cwd=tmp_path)
    assert ended.returncode == code, ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_interrupted_audit_says_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.experiments.ensembles import runner

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "train", interrupted)
    monkeypatch.setattr("secede.cli.commands.audit.progress.signal.signal", lambda *_: None)
    audits.write(tmp_path)
    ended = secede("audit", "tiny.toml", *MODELS, cwd=tmp_path)
    assert ended.returncode == 130
    assert "the same command continues from here" in ended.stderr


def test_damaged_records_are_named(folder: Path) -> None:
    (path,) = (folder / "runs").glob("audit-*/members/003.json")
    path.write_text("{")
    ended = secede("audit", "tiny.toml", *MODELS, cwd=folder)
    assert ended.returncode == 5
    assert "003.json" in ended.stderr
