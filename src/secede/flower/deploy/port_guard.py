"""Flower's programs behind a guard: others who reach their port may act as sites, and no more.

Flower serves sites, operators and its own apps on one port, without accounts: whoever reaches it
could start a run, and a run is code. The guard answers /v1/fleet/, where each site proves its key,
to anybody, and every other path only to processes of its own account on this machine, which the
kernel tells it. A SuperNode's port gets TLS: its apps take no code from whoever has it afterwards.

python -m secede.flower.deploy.port_guard "$(command -v flower-superlink)" OPTIONS...
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import runpy
import socket
import struct
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from secede.errors import ConfigError, SecedeError

SHARED = "SECEDE_TRUST_LOCAL_ACCOUNTS"  # in the environment: start although nobody names peers
_FOR_SITES = "/v1/fleet/"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_UNNAMED = Path("/proc/sys/kernel/overflowuid")  # the number of all accounts that have none here
_NAMED = Path("/proc/self/uid_map")
_ALL_ACCOUNTS = 2**32 - 1
_ESTABLISHED = 1
_OWN_TLS = ("--ssl-certfile", "--appio-ssl-certfile", "--host", "--isolation")
_REFUSAL = b"only sites may reach this from outside: run the command in the account of this program"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
App = Callable[[Scope, Receive, Callable[[Any], Awaitable[None]]], Awaitable[None]]
Address = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


class PortGuard:
    """An ASGI app around Flower's own."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or _may_pass(scope, receive):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})


def _may_pass(scope: Scope, receive: Receive) -> bool:
    if scope["type"] != "http":
        return False
    if scope["path"].startswith(_FOR_SITES):
        return True
    with _connection(receive) as connection:
        if connection is None:
            return False
        if names_peers():
            return account_at_peer(connection) == os.geteuid()
        return _address(*connection.getpeername()[:2])[0].is_loopback  # no other accounts here


@contextmanager
def _connection(receive: Receive) -> Iterator[socket.socket | None]:
    """Yield a copy of the connection that a request came by, None if it has ended.

    The client that `scope` names is no proof: uvicorn takes it from X-Forwarded-For.
    """
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    known = None if transport is None or transport.is_closing() else _socket_of(transport)
    if known is None:
        yield None
        return
    with known:
        yield known


def _socket_of(transport: Any) -> socket.socket | None:
    known = transport.get_extra_info("socket")
    try:
        return None if known is None else socket.socket(fileno=os.dup(known.fileno()))
    except OSError:
        return None


def names_peers() -> bool:
    """Return whether this system tells which account owns the other end of a connection."""
    return _TABLES[0].exists() and not _shares_its_number()


def _shares_its_number() -> bool:
    """Return whether accounts outside this user namespace have the number of this account, too."""
    try:
        unnamed = int(_UNNAMED.read_text(encoding="ascii"))
        named = sum(int(line.split()[2]) for line in _NAMED.read_text("ascii").splitlines())
    except OSError:
        return False
    return os.geteuid() == unnamed and named < _ALL_ACCOUNTS


def account_at_peer(connection: socket.socket) -> int | None:
    """Return the account at the other end of a connection; None if it is not local, or has ended.

    Once a connection has ended, another account's may have the same two ends. So this end has to be
    open still after the kernel was asked.
    """
    try:
        peer = _address(*connection.getpeername()[:2])
        own = _address(*connection.getsockname()[:2])
        account = owner_of(peer, own)
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return None
    return account if state == _ESTABLISHED else None


def owner_of(peer: Address, own: Address) -> int | None:
    """Return the account whose socket is `peer`, connected to `own`; None if it is not local."""
    for local, remote, account in _connections():
        if (local, remote) == (peer, own):
            return account
    return None


def _connections() -> Iterator[tuple[Address, Address, int]]:
    """Yield local end, remote end and account of each TCP connection of this machine."""
    for table in _TABLES:
        if table.exists():
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                _, local, remote, state, *_, account, _, inode = line.split()[:10]
                if int(state, 16) == _ESTABLISHED and inode != "0":  # of a closed end it says root
                    yield _from_table(local), _from_table(remote), int(account)


def _from_table(text: str) -> Address:
    digits, port = text.split(":")
    words = struct.unpack(f">{len(digits) // 8}I", bytes.fromhex(digits))
    packed = struct.pack(f"={len(words)}I", *words)  # the kernel prints words of its own byte order
    return _plain(ipaddress.ip_address(packed)), int(port, 16)


def _address(host: str, port: int) -> Address:
    return _plain(ipaddress.ip_address(host.partition("%")[0])), port


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def other_accounts() -> list[str]:
    """Return the login accounts of this machine, but this one and root."""
    closed = ("nologin", "false", "sync", "shutdown", "halt")
    return sorted(
        account.pw_name
        for account in pwd.getpwall()
        if account.pw_uid not in (0, os.geteuid())
        and account.pw_uid >= 500
        and Path(account.pw_shell or "false").name not in closed
    )


def check_machine() -> None:
    """Raise where the guard cannot tell accounts apart and there are others."""
    if names_peers() or os.environ.get(SHARED) == "1":
        return
    others = ["those outside this user namespace"] if _shares_its_number() else []
    if accounts := [*others, *other_accounts()]:
        raise ConfigError(
            f"other accounts of this machine ({', '.join(accounts[:3])}) could start runs, which "
            "are code in your account: this system does not tell whose a connection is. Use a "
            f"machine of your own, or set {SHARED}=1 if you trust them"
        )


def main() -> None:
    """Run one of Flower's programs behind the guard."""
    from secede.flower import _flwr

    try:
        check_machine()
    except SecedeError as error:
        sys.exit(f"error: {error}")
    _flwr.wrap_served_apps(PortGuard)
    with own_tls(sys.argv[1:]) as options:
        sys.argv = [*sys.argv[1:], *options]
        runpy.run_path(sys.argv[0], run_name="__main__")


@contextmanager
def own_tls(command: Sequence[str]) -> Iterator[list[str]]:
    """Yield options that give a SuperNode's port a certificate of this start's own authority.

    Its apps take their code from that port. Without TLS they would take it from whoever has the
    port once the SuperNode has ended.
    """
    given = {word.partition("=")[0] for word in command}
    if Path(command[0]).name != "flower-supernode" or not given.isdisjoint(_OWN_TLS):
        yield []
        return
    from secede.flower.deploy.scaffold import LOOPBACK, write_certificates

    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=home, prefix="port-") as name:
        folder = Path(name)
        write_certificates(folder, LOOPBACK)
        (folder / "ca.key").unlink()
        yield [
            *("--ssl-ca-certfile", str(folder / "ca.crt")),
            *("--ssl-certfile", str(folder / "server.crt")),
            *("--ssl-keyfile", str(folder / "server.key")),
        ]


if __name__ == "__main__":
    main()
