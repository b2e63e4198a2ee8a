"""Whoever is no site is refused at the port, unless its process is of the program's own account."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from secede.errors import ConfigError
from secede.flower.deploy import port_guard

SERVER = """
import sys, uvicorn
from secede.flower.deploy.port_guard import PortGuard
seen = set()
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        return await send({"type": "lifespan.shutdown.complete"})
    seen.add(scope["path"])
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
if len(sys.argv) > 4:
    os.setgid(int(sys.argv[4])); os.setuid(int(sys.argv[4]))
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as connection:
    connection.sendall(f"POST {sys.argv[3]} HTTP/1.0\\r\\n\\r\\n".encode())
    print(connection.recv(1000).split()[1].decode())
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


def ask(served: tuple[str, int], path: str, account: int | None = None) -> int:
    command = [sys.executable, "-I", "-c", ASK, served[0], str(served[1]), path]
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
        where = [served[0], str(served[1]), "/hurried", str(NOBODY)]
        subprocess.run([sys.executable, "-I", "-c", hurried, *where], check=True)
    assert ask(served, "/v1/fleet/reached") == 200


def call(**scope: Any) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "served"})

    async def receive() -> None: ...

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(
        port_guard.PortGuard(app)({"type": "http", "path": "/v1/control/x", **scope}, receive, send)
    )
    return sent


@linux
@pytest.mark.parametrize(
    "ends",
    [
        {"client": ("203.0.113.9", 4711), "server": ("192.0.2.1", 9092)},
        {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)},
        {"client": None, "server": ("127.0.0.1", 2)},
        {},
    ],
    ids=["another machine", "no such connection", "nobody", "nothing"],
)
def test_whom_the_kernel_does_not_know_is_refused(ends: dict[str, Any]) -> None:
    assert call(**ends)[0]["status"] == 403
    assert call(**ends, type="websocket") == [{"type": "websocket.close", "code": 1008}]
    assert call(**ends, path="/v1/fleet/pull-messages") == [{"type": "served"}]


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
    assert call(client=("127.0.0.1", 5), server=("127.0.0.1", 6)) == [{"type": "served"}]
    assert call(client=("192.0.2.7", 5), server=("127.0.0.1", 6))[0]["status"] == 403
    monkeypatch.delenv(port_guard.SHARED)
    monkeypatch.setattr(port_guard, "other_accounts", list)
    port_guard.check_machine()
