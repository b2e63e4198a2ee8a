import errno
import hashlib
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from harness.lines import Lines
from secede.data.download import fetch, matches
from secede.errors import DataError, StorageError

CONTENT = bytes(range(256)) * 4000  # 1,024,000 bytes: several chunks
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
# By path: status, announced length (None: not announced), body.
Replies = Mapping[str, tuple[int, int | None, bytes]]
Serve = Callable[[Replies], str]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = []

    def start(replies: Replies) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/silent":
                    time.sleep(1)
                    return
                status, length, body = replies.get(self.path, (404, 0, b""))
                self.send_response(status)
                if length is not None:
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("checksum", [SHA256, MD5])
@pytest.mark.parametrize("length", [len(CONTENT), None])
def test_a_good_file_arrives_whole(
    serve: Serve, tmp_path: Path, checksum: str, length: int | None
) -> None:
    base = serve({"/file": (200, length, CONTENT)})
    fetch(f"{base}/file", tmp_path / "new" / "file", checksum, size=len(CONTENT))
    assert (tmp_path / "new" / "file").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/changed", "wrong checksum: found sha256 "),
        ("/short", "ended after 1,000 of 1,024,000 bytes"),
        ("/empty", "wrong checksum"),
        ("/longer", "sends more than the 1,024,000 bytes that the file has"),
        ("/endless", "sends more than the 1,024,000 bytes that the file has"),
        ("/absent", "HTTP 404 Not Found"),
        ("/broken", "HTTP 503 Service Unavailable"),
        ("/silent", "timed out"),
    ],
)
def test_a_bad_reply_is_named_and_nothing_is_left(
    serve: Serve, tmp_path: Path, path: str, message: str
) -> None:
    base = serve(
        {
            "/changed": (200, len(CONTENT), b"x" + CONTENT[1:]),
            "/short": (200, len(CONTENT), CONTENT[:1000]),
            "/empty": (200, 0, b""),
            "/longer": (200, len(CONTENT) + 1, CONTENT + b"x"),
            "/endless": (200, None, CONTENT * 20),
            "/broken": (503, 0, b""),
        }
    )
    with pytest.raises(DataError, match=message) as caught:
        fetch(f"{base}{path}", tmp_path / "file", SHA256, size=len(CONTENT), timeout_seconds=0.3)
    assert f"{base}{path}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_leaves_the_former_file_alone(serve: Serve, tmp_path: Path) -> None:
    base = serve({"/file": (200, 3, b"bad")})
    (tmp_path / "file").write_bytes(b"former")
    with pytest.raises(DataError):
        fetch(f"{base}/file", tmp_path / "file", SHA256, size=len(CONTENT))
    assert (tmp_path / "file").read_bytes() == b"former"


def test_the_next_mirror_is_tried(serve: Serve, tmp_path: Path) -> None:
    base = serve({"/bad": (200, 3, b"bad"), "/good": (200, len(CONTENT), CONTENT)})
    mirrors = [f"http://127.0.0.1:{closed_port()}/x", f"{base}/bad", f"{base}/good"]
    fetch(mirrors, tmp_path / "file", SHA256, size=len(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_offline_the_error_names_each_mirror_and_the_ways_out(tmp_path: Path) -> None:
    mirrors = [f"http://127.0.0.1:{closed_port()}/{name}" for name in ("first", "second")]
    with pytest.raises(DataError, match=r"cannot download file .*refused.*refused") as caught:
        fetch(mirrors, tmp_path / "file", SHA256, size=len(CONTENT))
    for part in (*mirrors, "SECEDE_DATA", "mnist-10k"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_a_storage_error_and_ends_the_attempts(
    serve: Serve, tmp_path: Path
) -> None:
    base = serve({"/file": (200, len(CONTENT), CONTENT)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))  # as if the disk were full
    try:
        with pytest.raises(StorageError, match="cannot write") as caught:
            fetch([f"{base}/file", f"{base}/absent"], tmp_path / "file", SHA256, size=len(CONTENT))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_a_destination_below_a_file_is_a_storage_error(serve: Serve, tmp_path: Path) -> None:
    base = serve({"/file": (200, len(CONTENT), CONTENT)})
    (tmp_path / "occupied").write_bytes(b"")
    with pytest.raises(StorageError):
        fetch(f"{base}/file", tmp_path / "occupied" / "file", SHA256, size=len(CONTENT))


def test_without_a_terminal_progress_is_one_line_of_the_log(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, lines = serve({"/file": (200, len(CONTENT), CONTENT)}), Lines()
    fetch(f"{base}/file", tmp_path / "file", SHA256, size=len(CONTENT))
    assert capsys.readouterr() == ("", "")
    assert lines == [f"downloading file (1.0 MB) from {base}/file"]


def test_on_a_terminal_progress_is_a_bar_on_stderr(
    serve: Serve,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = serve({"/file": (200, len(CONTENT), CONTENT)})
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    fetch(f"{base}/file", tmp_path / "file", SHA256, size=len(CONTENT))
    output = capsys.readouterr()
    assert output.out == ""
    assert "downloading file" not in output.err
    assert "1.0/1.0 MB" in output.err


def test_matches_compares_the_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    assert matches(tmp_path / "file", MD5)
    assert not matches(tmp_path / "file", "md5:" + "0" * 32)
    assert not matches(tmp_path / "absent", MD5)
