from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from secede import files
from secede.errors import StorageError
from secede.files import LockedError


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


def test_a_file_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    files.create(path, b"one", 0o600)
    with pytest.raises(FileExistsError):
        files.create(path, b"two", 0o600)
    assert path.read_bytes() == b"one"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    with pytest.raises(StorageError, match=r"cannot write .*below: \w+"):
        files.create(path / "below", b"x", 0o600)


def test_a_lock_is_waited_for_and_refused_after_the_timeout(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with files.lock(path):
        begun = time.monotonic()
        refused = pytest.raises(LockedError, match="is locked by another process")
        with refused, files.lock(path, timeout=0.2):
            pass
        assert 0.2 <= time.monotonic() - begun < 5
    with files.lock(path, timeout=0):
        pass


def test_a_lock_on_a_folder_leaves_nothing_in_it(tmp_path: Path) -> None:
    with files.lock_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageError, match="cannot write"), files.lock_folder(tmp_path / "absent"):
        pass


def test_a_file_under_another_name_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.link(tmp_path / "file", tmp_path / "further")
    with pytest.raises(StorageError, match="is a symbolic link"):
        files.delete(tmp_path / "link")
    with pytest.raises(StorageError, match="has 2 names"):
        files.delete(tmp_path / "file")
    (tmp_path / "further").unlink()
    files.delete(tmp_path / "file")
    files.delete(tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_what_kills_left_is_removed_with_the_folders_below(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for path in (tmp_path / ".x.1.part", tmp_path / "a" / ".y.2.part", tmp_path / "a" / "y"):
        path.touch()
    files.remove_parts(tmp_path)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["y"]


def test_files_get_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files.write_text(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
