"""A project folder, as `secede flower init` writes it, and calls of Flower's programs for it.

federation.toml     the SuperLink's address, the sites
app/                the Flower app           home/           the erasures' home, at the server
certificates/       authority and server     nodes/          a key pair for each site
sites/NAME/         updates that a site keeps    logs/       output of the processes
state/              the SuperLink's database, process ids    flower/     Flower's own folders
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from secede import files
from secede.erasure import check_name
from secede.errors import ConfigError, SecedeError, SilentError

SUPERLINK = "superlink"
OPERATOR = "operator"  # whose commands use the Flower folder of this name
CONNECTION = "secede"  # the SuperLink's name in Flower's config
MARK = "SECEDE_FLOWER"  # in the environment of SuperLink, SuperNodes and their child processes
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# Seconds between two polls of the process that starts apps; Flower's own second delays each message
PROMPT = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
_FILE = "federation.toml"
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9-]{1,63})*"
)
TIMEOUT = 60.0  # seconds that a call of flwr may take


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project folder, and the content of its federation.toml."""

    folder: Path  # absolute
    listen: str  # the address the SuperLink binds to
    address: str  # the name or address under which the sites reach it
    port: int
    sites: tuple[str, ...]
    accounts: Mapping[str, str] = field(default_factory=dict)  # of sites not in the project's own

    @classmethod
    def load(cls, folder: Path) -> Project:
        """Read a project; ConfigError if it is not one, or not valid."""
        path = folder.absolute() / _FILE
        if not path.is_file():
            raise ConfigError(
                f"{folder} is no Flower project: expected a folder made by `secede flower init`"
            )
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read ({error})") from error
        kinds = {"listen": str, "address": str, "port": int, "sites": list}
        for key, kind in kinds.items():
            if not isinstance(content.get(key), kind) or isinstance(content[key], bool):
                raise ConfigError(f"{path}: {key} is missing or not of type {kind.__name__}")
        accounts = content.pop("accounts", {})
        if not isinstance(accounts, dict) or set(accounts) - set(content["sites"]):
            raise ConfigError(f"{path}: accounts must name sites only, such as {{site-1 = 'fl-1'}}")
        if unknown := set(content) - set(kinds):
            raise ConfigError(f"{path}: unknown key {min(unknown)!r}; expected {', '.join(kinds)}")
        return cls(
            folder=folder.absolute(),
            listen=content["listen"],
            address=content["address"],
            port=content["port"],
            sites=tuple(str(name) for name in content["sites"]),
            accounts={str(site): str(name) for site, name in accounts.items()},
        ).checked()

    def checked(self) -> Project:
        """Return the project if its values are valid; ConfigError otherwise."""
        check_host(self.listen)
        check_host(self.address)
        if not 1 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}, expected 1 to 65535")
        if len(self.sites) < 2:
            raise ConfigError(f"{len(self.sites)} sites: a federation needs at least two")
        for name in self.sites:
            check_name(name, "site")
            if name == SUPERLINK or name.startswith("-"):
                raise ConfigError(f"site {name!r} cannot be called that: take another name")
        if len(set(self.sites)) < len(self.sites):
            raise ConfigError("two sites have the same name")
        return self

    def write(self, folder: Path | None = None) -> None:
        """Write the files that name hosts and ports, into `folder` or the project's own."""
        target = folder or self.folder
        sites = ", ".join(f'"{name}"' for name in self.sites)
        files.write_text(
            target / _FILE,
            f'listen = "{self.listen}"  # 127.0.0.1: no other machine reaches it\n'
            f'address = "{self.address}"  # where the sites find the SuperLink\n'
            f"port = {self.port}\nsites = [{sites}]\n{self._accounts_line}",
        )
        authority = str(self.authority).replace("\\", "\\\\").replace('"', '\\"')
        files.write_text(
            target / "flower" / OPERATOR / "config.toml",
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{self.superlink_address}"\nroot-certificates = "{authority}"\n',
        )
        quiet = "".join(f"export {key}={value}\n" for key, value in {**QUIET, **PROMPT}.items())
        files.write_text(
            target / "environment.sh",
            "# Read by the other scripts, in the project's folder: quiet, and where things are.\n"
            f'{quiet}export FLWR_HOME="$PWD/flower/{OPERATOR}"\n'
            f"LISTEN={self.listen} PORT={self.port} SUPERLINK={self.superlink_address}\n"
            f'SITES="{" ".join(self.sites)}"\n',
        )

    @property
    def _accounts_line(self) -> str:
        each = ", ".join(f'"{site}" = {json.dumps(name)}' for site, name in self.accounts.items())
        return f"accounts = {{ {each} }}  # in which `up` starts sites\n" if each else ""

    @property
    def superlink_address(self) -> str:
        """Host and port under which the sites reach the SuperLink."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    @property
    def open_to_others(self) -> bool:
        """Whether the SuperLink listens on an address that other machines may reach."""
        address = address_of(self.listen)
        return self.listen != "localhost" if address is None else not address.is_loopback

    @property
    def certificates(self) -> Path:
        """The folder of the TLS files."""
        return self.folder / "certificates"

    @property
    def authority(self) -> Path:
        """The authority's certificate, which all sites trust."""
        return self.certificates / "ca.crt"

    @property
    def app(self) -> Path:
        """The Flower app."""
        return self.folder / "app"

    @property
    def home(self) -> Path:
        """The erasures' home folder at the server."""
        return self.folder / "home"

    @property
    def state(self) -> Path:
        """The folder of the SuperLink's database and the process ids."""
        return self.folder / "state"

    @property
    def database(self) -> Path:
        """The SuperLink's database of nodes and runs."""
        return self.state / "superlink.db"

    def key(self, site: str) -> Path:
        """Return a site's private key."""
        return self.folder / "nodes" / f"{site}.key"

    @property
    def local_sites(self) -> tuple[str, ...]:
        """The sites whose private keys are here; the others run where theirs are."""
        return tuple(site for site in self.sites if self.key(site).exists())

    def updates_folder(self, site: str) -> Path:
        """Return the folder in which a site keeps its own last updates."""
        return self.folder / "sites" / site

    def log(self, name: str) -> Path:
        """Return the file with a process's output."""
        return self.folder / "logs" / f"{name}.log"

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a process: no telemetry, and a Flower folder of its own."""
        beside = str(Path(sys.executable).parent)  # where Flower's programs are installed
        return {
            **PROMPT,
            **os.environ,
            **QUIET,
            **({MARK: str(self.folder)} if name != OPERATOR else {}),
            "FLWR_HOME": str(self.folder / "flower" / name),
            "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}",
        }


def check_host(host: str) -> str:
    """Return `host` if it is an address or a host name without a port; ConfigError otherwise."""
    if address_of(host) is None and not _HOST.fullmatch(host):
        raise ConfigError(
            f"host {host[:80]!r} cannot be used: expected a name such as fl.example.org or an "
            "address, without a port"
        )
    return host


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a host's address, None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def program(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of one of Flower's programs."""
    path = shutil.which(name, path=environment["PATH"])
    if path is None:
        raise ConfigError(
            f"{name} is not installed: pip install '.[flower]' in a checkout, or "
            "'secede[flower]' from a release"
        )
    return path


def flwr(project: Project, *arguments: str, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Call `flwr` as the operator and return its JSON; raise at an error, or without an answer."""
    environment = project.environment(OPERATOR)
    command = [program("flwr", environment), *arguments, CONNECTION, "--format", "json"]
    name = f"flwr {' '.join(arguments[:2])}"
    try:
        ended = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise SilentError(f"{name} got no answer within {timeout:g} seconds") from None
    answer = _json(ended.stdout)
    if answer is None or not answer.get("success", ended.returncode == 0):
        error = (answer or {}).get("error-message") or ended.stderr or ended.stdout
        raise SecedeError(f"{name}: {_last_line(str(error))}")
    return answer


def _json(text: str) -> dict[str, Any] | None:
    try:
        answer = json.loads(text[text.index("{") :])
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no answer"
