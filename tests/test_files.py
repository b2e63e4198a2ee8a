from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from secede import files
from secede.errors import StorageError


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    files.write_text(path, "one")
    files.write_text(path, "zwei ü")
    assert path.read_text(encoding="utf-8") == "zwei ü"
    assert files.digest(path) == hashlib.sha256("zwei ü".encode()).hexdigest()
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_text(path, "old")

    def fail() -> None:
        with files.replace(path) as temporary:
            temporary.write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_process_killed_in_the_middle_of_a_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_text(path, "old")
    program = (
        "import os, signal\nfrom pathlib import Path\nfrom secede import files\n"
        f"with files.replace(Path({str(path)!r})) as temporary:\n"
        "    temporary.write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_private_files_and_folders_are_their_owner_s_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with files.private():
            files.write_text(tmp_path / "a" / "b" / "secret", "x")
        files.write_text(tmp_path / "c" / "open", "x")
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")
    }
    assert modes == {"a": 0o700, "a/b": 0o700, "a/b/secret": 0o600, "c": 0o755, "c/open": 0o644}


def test_lines_are_appended(tmp_path: Path) -> None:
    files.append_line(tmp_path / "log", "a")
    files.append_line(tmp_path / "log", "b")
    assert (tmp_path / "log").read_text() == "a\nb\n"


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot write .*below: \w+"):
        files.write_text(tmp_path / "file" / "below", "x")
    with pytest.raises(StorageError, match="cannot append"):
        files.append_line(tmp_path / "absent" / "log", "x")


def test_files_get_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files.write_text(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
