"""Flower's programs behind a guard: others who reach their port may act as sites, and no more.

Flower serves sites, operators and its own apps on one port, without accounts: whoever reaches it
could start a run, and a run is code. The guard answers /v1/fleet/, where each site proves its key,
to anybody, and every other path only to processes of its own account on this machine, which the
kernel tells it.

python -m secede.flower.deploy.port_guard "$(command -v flower-superlink)" OPTIONS...
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import runpy
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

from secede.errors import ConfigError, SecedeError

SHARED = "SECEDE_TRUST_LOCAL_ACCOUNTS"  # in the environment: start although nobody names peers
_FOR_SITES = "/v1/fleet/"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
_REFUSAL = b"only sites may reach this from outside: run the command in the account of this program"

Scope = MutableMapping[str, Any]
App = Callable[
    [Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]
Address = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


class PortGuard:
    """An ASGI app around Flower's own."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(
        self,
        scope: Scope,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or _may_pass(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})


def _may_pass(scope: Scope) -> bool:
    if scope["type"] == "http" and scope["path"].startswith(_FOR_SITES):
        return True
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None:
        return False
    peer, own = _address(*client), _address(*server)
    if names_peers():
        return owner_of(peer, own) == os.geteuid()
    return peer[0].is_loopback  # the program started on a machine without other accounts


def names_peers() -> bool:
    """Return whether this system tells which account owns the other end of a connection."""
    return _TABLES[0].exists()


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
                if state == _ESTABLISHED and inode != "0":  # of a closed end it says root
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
    if accounts := other_accounts():
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
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
