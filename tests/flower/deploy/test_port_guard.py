"""Whoever is no site is refused at the port, unless its process is of the program's own account."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from secede.errors import ConfigError
from secede.flower.deploy import port_guard

SERVER = """
import sys, time, uvicorn
from secede.flower.deploy.port_guard import PortGuard
seen = set()
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        return await send({"type": "lifespan.shutdown.complete"})
    seen.add(scope["path"])
    if scope["path"].endswith("/busy"):
        time.sleep(0.6)
    status = 500 if "/hurried" in seen else 200
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b"served"})
host = sys.argv[1]
listener = __import__("socket").create_server((host, 0), family=int(sys.argv[2]))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(PortGuard(app), log_level="error")).run(sockets=[listener])
"""
ASK = """
import encodings.idna, os, socket, sys
host, port, path, header, *account = sys.argv[1:]
for number in account:
    os.setgid(int(number)), os.setuid(int(number))
with socket.create_connection((host, int(port)), timeout=10) as connection:
    connection.sendall(f"POST {path} HTTP/1.0\\r\\n{header}\\r\\n\\r\\n".encode())
    print(connection.recv(1000).split()[1].decode())
"""
RESET = """
import encodings.idna, os, socket, struct, sys
os.setgid(int(sys.argv[3])), os.setuid(int(sys.argv[3]))
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
print(connection.getsockname()[1], flush=True)
sys.stdin.readline()
connection.sendall(b"POST /hurried HTTP/1.0\\r\\n\\r\\n")
connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""
NOBODY = 65534
linux = pytest.mark.skipif(not port_guard.names_peers(), reason="no /proc/net/tcp here")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
CLOSED = ["/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/", "/v1/fleet"]


@pytest.fixture(params=["127.0.0.1", "::1"], scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    host = str(request.param)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, 0), family=family).close()
    except OSError:
        pytest.skip(f"no {host} here")
    command = [sys.executable, "-c", SERVER, host, str(int(family))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield host, int(process.stdout.readline())
        process.kill()


def ask(
    served: tuple[str, int], path: str, account: int | None = None, header: str = "Accept: */*"
) -> int:
    command = [sys.executable, "-I", "-c", ASK, served[0], str(served[1]), path, header]
    command += [] if account is None else [str(account)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@linux
@pytest.mark.parametrize("path", CLOSED)
def test_the_own_account_is_served(served: tuple[str, int], path: str) -> None:
    assert ask(served, path) == 200


@linux
@as_root
@pytest.mark.parametrize(
    "path", [*CLOSED, "//v1/fleet/x", "/v1/FLEET/x", "/v1/%66leet/../control/start-run"]
)
def test_another_account_is_refused(served: tuple[str, int], path: str) -> None:
    expected = 200 if path.startswith("/v1/%66leet/") else 403  # decoded, it is a path for sites
    assert ask(served, path, NOBODY) == expected


@linux
@as_root
def test_sites_of_any_account_are_served(served: tuple[str, int]) -> None:
    assert ask(served, "/v1/fleet/pull-messages", NOBODY) == 200


@linux
@as_root
def test_who_closes_at_once_is_not_taken_for_root(served: tuple[str, int]) -> None:
    hurried = ASK.replace("print(connection.recv(1000).split()[1].decode())", "pass")
    for _ in range(50):
        where = [served[0], str(served[1]), "/hurried", "Accept: */*", str(NOBODY)]
        subprocess.run([sys.executable, "-I", "-c", hurried, *where], check=True)
    assert ask(served, "/v1/fleet/reached") == 200


@linux
@as_root
@pytest.mark.parametrize("path", CLOSED)
def test_a_forwarded_header_names_nobody(served: tuple[str, int], path: str) -> None:
    with socket.create_connection(served, timeout=10) as own:
        host, port = own.getsockname()[:2]
        end = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        assert ask(served, path, NOBODY, f"X-Forwarded-For: {end}") == 403
        assert ask(served, path, NOBODY, f"Forwarded: for={end}") == 403
        assert ask(served, path, None, "X-Forwarded-For: 203.0.113.9:4711") == 200


@linux
@as_root
def test_who_takes_over_a_port_does_not_vouch_for_who_had_it(served: tuple[str, int]) -> None:
    for _ in range(3):
        where = [served[0], str(served[1]), str(NOBODY)]
        with subprocess.Popen(
            [sys.executable, "-I", "-c", RESET, *where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as stranger:
            assert stranger.stdin is not None
            assert stranger.stdout is not None
            port = int(stranger.stdout.readline())
            assert ask(served, "/v1/fleet/accepted") == 200  # and the stranger before it
            with socket.create_connection(served, timeout=10) as busy:
                busy.sendall(b"POST /v1/fleet/busy HTTP/1.0\r\n\r\n")
                time.sleep(0.2)
                stranger.stdin.write("\n")
                stranger.stdin.close()
                stranger.wait()
                with socket.create_connection(served, 10, source_address=(served[0], port)):
                    assert busy.recv(1000)
                    assert ask(served, "/v1/fleet/reached") == 200


class Cycle:
    """Stands for a request of uvicorn's, with its transport."""

    def __init__(self, connection: socket.socket | None) -> None:
        self.transport, self._connection = self, connection

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> socket.socket | None:
        assert name == "socket"
        return self._connection

    async def receive(self) -> None: ...


def call(connection: socket.socket | None = None, **scope: Any) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "served"})

    async def send(message: Any) -> None:
        sent.append(message)

    asked = {"type": "http", "path": "/v1/control/x", **scope}
    asyncio.run(port_guard.PortGuard(app)(asked, Cycle(connection).receive, send))
    return sent


@linux
def test_whom_the_kernel_does_not_know_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as peer,
        listener.accept()[0] as own,
    ):
        assert call(own) == [{"type": "served"}]
        own_ends = {"client": peer.getsockname(), "server": own.getsockname()}
        peer.close()
        for connection in (own, listener, None):
            assert call(connection, **own_ends)[0]["status"] == 403
            websocket = call(connection, type="websocket")
            assert websocket == [{"type": "websocket.close", "code": 1008}]
            assert call(connection, path="/v1/fleet/pull-messages") == [{"type": "served"}]


def test_addresses_are_read_as_the_kernel_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.byteorder != "little":
        pytest.skip("written for little-endian machines")
    table = tmp_path / "tcp"
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
    table.write_text(
        head
        + "   0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000 0 7\n"
        "   1: 0000000000000000FFFF00000100007F:C351 0000000000000000FFFF00000100007F:1F90 "
        "01 00000000:00000000 00:00000000 00000000  1001 0 8\n"
        "   2: 0100007F:C352 0100007F:1F90 06 00000000:00000000 03:000016F9 00000000     0 0 0\n"
        "   3: 0100007F:C353 0100007F:1F90 01 00000000:00000000 03:000016F9 00000000     0 0 0\n"
    )
    monkeypatch.setattr(port_guard, "_TABLES", (table,))
    loop = ipaddress.ip_address("127.0.0.1")
    assert port_guard.owner_of((loop, 8080), (loop, 50000)) == 1000
    assert port_guard.owner_of((loop, 50001), (loop, 8080)) == 1001  # IPv4 over an IPv6 socket
    assert port_guard.owner_of((loop, 50000), (loop, 8080)) is None
    for closed in (50002, 50003):  # the kernel says root of an end that nobody holds any more
        assert port_guard.owner_of((loop, closed), (loop, 8080)) is None


def test_where_nobody_names_peers_a_machine_with_other_accounts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_guard, "_TABLES", (tmp_path / "none",))
    monkeypatch.setattr(port_guard, "other_accounts", lambda: ["eve"])
    with pytest.raises(ConfigError, match=r"\(eve\) could start runs.*SECEDE_TRUST_LOCAL"):
        port_guard.check_machine()
    monkeypatch.setenv(port_guard.SHARED, "1")
    port_guard.check_machine()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as own,
    ):
        assert call(own) == [{"type": "served"}]
    assert call(None, client=("127.0.0.1", 5))[0]["status"] == 403
    monkeypatch.delenv(port_guard.SHARED)
    monkeypatch.setattr(port_guard, "other_accounts", list)
    port_guard.check_machine()


def test_a_number_that_accounts_outside_share_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {"_UNNAMED": f"{os.geteuid()}\n", "_NAMED": "0 1000 1\n"}.items():
        (tmp_path / name).write_text(content)
        monkeypatch.setattr(port_guard, name, tmp_path / name)
    monkeypatch.setattr(port_guard, "other_accounts", list)
    assert not port_guard.names_peers()
    with pytest.raises(ConfigError, match="outside this user namespace"):
        port_guard.check_machine()
    (tmp_path / "_NAMED").write_text("0 0 4294967295\n")
    port_guard.check_machine()


def test_a_sites_port_has_tls_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "site-1"))
    with port_guard.own_tls(["/bin/flower-supernode", "--port", "9094"]) as options:
        assert options[::2] == ["--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile"]
        assert [Path(file).name for file in options[1::2]] == ["ca.crt", "server.crt", "server.key"]
        assert Path(options[1]).parent.stat().st_mode & 0o77 == 0
        assert not list(tmp_path.rglob("ca.key"))
    assert list((tmp_path / "site-1").iterdir()) == []
    for given in (["flower-superlink"], ["flower-supernode", "--ssl-certfile=own.crt"]):
        with port_guard.own_tls(given) as options:
            assert options == []
