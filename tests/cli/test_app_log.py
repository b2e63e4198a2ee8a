from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from harness.commands import secede
from secede.cli.app import show_log
from secede.errors import StorageError

LOGGER = logging.getLogger("secede.somewhere")


def log_three() -> None:
    LOGGER.debug("a detail")
    LOGGER.info("a step")
    LOGGER.warning("a worry")


def test_standard_error_shows_steps_and_worries(capsys: pytest.CaptureFixture[str]) -> None:
    show_log()
    show_log()  # of two calls the last one counts
    log_three()
    assert capsys.readouterr().err.splitlines() == ["a step", "warning: a worry"]


def test_verbose_shows_details_and_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    show_log(verbose=True)
    log_three()
    lines = capsys.readouterr().err.splitlines()[-3:]
    assert lines == ["debug: secede.somewhere: a detail", "a step", "warning: a worry"]


def test_a_log_file_has_everything_with_time_and_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "secede.log"
    for _ in range(2):  # it is appended to
        show_log(file=path)
        log_three()
    assert "a detail" not in capsys.readouterr().err
    assert path.stat().st_mode & 0o777 == 0o600
    lines = path.read_text().splitlines()
    assert len(lines) == 8
    for line, level, text in zip(
        lines[1:4], ("DEBUG", "INFO", "WARNING"), ("a detail", "a step", "a worry"), strict=True
    ):
        time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
        assert re.fullmatch(f"{time} {level} secede.somewhere: {text}", line)


def test_a_log_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "secede.log"):
        with pytest.raises(StorageError, match=f"cannot write the log file {path}: "):
            show_log(file=path)


def test_the_options_stand_before_the_command(tmp_path: Path) -> None:
    path = tmp_path / "secede.log"
    failed = secede("-v", "--log-file", str(path), "run", "nonsense")
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-1].startswith("secede: no preset 'nonsense'")
    for text in (failed.stderr, path.read_text()):
        assert "--log-file" in text  # how it was called
        assert "Traceback" in text  # asked for
        assert "stopped by ConfigError" in text
    assert "Traceback" not in secede("run", "nonsense").stderr
