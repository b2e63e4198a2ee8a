"""What `make` would do in a fresh clone, and in one where some of it was done."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.paths import ROOT

LIBRARY, TOOLS = "--require-hashes -r constraints.txt\n", "-r constraints-dev.txt\n"
PINS = ("constraints.txt", "constraints-torch.txt", "constraints-torch-cpu.txt")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", *PINS, "constraints-dev.txt"):
        shutil.copy(ROOT / name, tmp_path)
        os.utime(tmp_path / name, (0, 0))
    return tmp_path


def would(clone: Path, target: str) -> str:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    command = ["make", "--no-print-directory", "-n", target]
    given = ("MAKE", "GNUMAKE", "PYTHON")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(given)}
    ended = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=clone, env=plain
    )
    return ended.stdout


def mark(clone: Path, *names: str) -> None:
    (clone / ".venv").mkdir(exist_ok=True)
    for name in names:
        (clone / ".venv" / name).touch()


def test_the_demo_installs_the_library_alone_and_says_so(clone: Path) -> None:
    done = would(clone, "demo")
    assert done.count("-r constraints") == len(PINS)  # of PyTorch one of two
    assert LIBRARY in done
    assert TOOLS not in done
    assert done.index("setting up .venv") < done.index("pip install") < done.index("secede demo")


@pytest.mark.parametrize("target", ["test", "test-all", "lint", "types"])
def test_tests_and_linters_add_the_rest_in_a_fresh_clone(clone: Path, target: str) -> None:
    done = would(clone, target)
    assert done.count("-m venv") == 1
    assert done.index(LIBRARY) < done.index("adding what the tests need") < done.index(TOOLS)


def test_what_is_installed_is_not_installed_again_in_either_order(clone: Path) -> None:
    mark(clone, ".library")  # after the demo
    assert "pip install" not in would(clone, "demo")
    done = would(clone, "test")
    assert LIBRARY not in done
    assert TOOLS in done
    mark(clone, ".installed")  # after the tests
    os.utime(clone / ".venv" / ".installed", (1, 1))
    assert "pip install" not in would(clone, "test")  # however much later the library came
    assert "pip install" not in would(clone, "demo")


def test_new_pins_are_installed_by_both(clone: Path) -> None:
    mark(clone, ".library", ".installed")
    later = (clone / ".venv" / ".installed").stat().st_mtime + 60
    for name in ("constraints.txt", "constraints-dev.txt"):
        os.utime(clone / name, (later, later))
    assert LIBRARY in would(clone, "demo")
    done = would(clone, "test")
    assert done.index(LIBRARY) < done.index(TOOLS)


@pytest.mark.parametrize("name", [*PINS, "constraints-dev.txt"])
def test_every_package_is_pinned_with_hashes(name: str) -> None:
    head, *packages = re.split(r"^(?=\w)", (ROOT / name).read_text(), flags=re.MULTILINE)
    assert packages
    assert head.startswith("# By `make constraints`")
    for package in packages:
        pin, *hashes = package.rstrip().split(" \\\n")
        assert re.fullmatch(r"[\w.-]+==[\w.+]+( ; .+)?", pin)
        assert hashes
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", each) for each in hashes), pin


def test_nothing_is_installed_without_a_hash_but_secede_itself(clone: Path) -> None:
    installs = [line for line in would(clone, "test").splitlines() if "pip install" in line]
    alone = "--no-deps --no-build-isolation -e ."  # by the hatchling that was installed by hash
    for line in installs:
        assert line.endswith(alone) or line.count("pip install") == line.count("--require-hashes")
    assert [line.endswith(alone) for line in installs].count(True) == 1


def test_what_builds_secede_and_runs_it_is_pinned_for_the_demo() -> None:
    pins = "".join((ROOT / name).read_text() for name in PINS)
    for name in ("torch", "hatchling", "editables"):
        assert re.search(f"^{name}==", pins, re.MULTILINE)
