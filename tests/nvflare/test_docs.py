"""The job in docs/nvflare.md, run as written in NVFlare's simulator."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from harness.nvflare.small import said, start, stop
from harness.paths import ROOT
from secede import state as states

PAGE = ROOT / "docs" / "nvflare.md"
SECONDS = 580.0  # all rungs: 35 rounds of five seconds each
RUNGS = ("local-step", "server-side", "retraining")

pytestmark = [pytest.mark.slow, pytest.mark.nvflare]


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the page's job; return how it ended and what it said."""
    process = start(folder, "job.py", *arguments, SECEDE_FOLDER=str(folder / "updates"))
    try:
        return process.wait(SECONDS), (folder / "job.log").read_text()
    except subprocess.TimeoutExpired:
        print((folder / "job.log").read_text()[-4000:])
        raise
    finally:
        stop(process)


def test_the_page_trains_and_erases_as_written(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    for name, program in zip(("net.py", "client.py", "job.py"), programs, strict=True):
        (tmp_path / name).write_text(program)
    ended, log = run(tmp_path)
    assert ended == 0, log[-4000:]
    assert {path.name for path in (tmp_path / "updates").iterdir()} == {
        f"site-{n}" for n in range(1, 5)
    }
    ended, log = run(tmp_path, "name:site-3")
    assert ended == 0, log[-4000:]
    found = said(tmp_path / "home")
    assert found["request"]["client"] == "site-3"
    assert found["method"]["rung"] in RUNGS  # which one may depend on the processor
    assert found["software"][0]["environment"]["engine"] == "nvflare"
    model, _ = states.load(tmp_path / "home" / "models" / f"{found['models']['after']}.safetensors")
    assert states.digest(model) == found["models"]["after"]


def test_a_job_that_fails_says_so_and_why(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    for name, program in zip(("net.py", "client.py", "job.py"), programs, strict=True):
        (tmp_path / name).write_text(program)
    ended, log = run(tmp_path, "name:site-3")
    assert ended != 0
    assert "secede: " in log
    assert "holds no completed round" in log
