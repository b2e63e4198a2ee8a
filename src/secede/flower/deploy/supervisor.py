"""A federation on this machine for a try-out: start it, show its status, stop it.

Every wait has a timeout and is logged. A failed start stops the processes that it started.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from secede import files
from secede.errors import ConfigError, SecedeError, SilentError
from secede.flower.deploy import port_guard, processes, site_accounts
from secede.flower.deploy.project import MARK, SUPERLINK, Project, flwr, program

logger = logging.getLogger(__name__)

LINK_TIMEOUT, NODE_TIMEOUT, STOP_TIMEOUT, SWEEP_TIMEOUT = 90.0, 120.0, 20.0, 60.0
_POLL = 0.3
_RESTART_PAUSE = 3.0  # seconds before a refused site is started again


@dataclass(frozen=True)
class ProcessStatus:
    """The status of one process."""

    name: str
    pid: int | None
    online: str  # to the SuperLink: yes, no, or – if the SuperLink does not answer
    node: str | None


def up(
    project: Project, *, timeout: float = NODE_TIMEOUT, accounts: Mapping[str, str] | None = None
) -> Project:
    """Start the processes that do not run, and wait until all sites are online.

    `accounts` are those of the sites, by site; they are kept in the project for the next time.
    """
    with processes.locked(project):
        project = _with_accounts(project, accounts or project.accounts)
        started: list[str] = []
        try:
            project = _superlink(project, started)
            _register(project)
            fresh = _supernodes(project, started)
            _wait_online(project, fresh, timeout)
        except BaseException as error:
            if started:
                logger.warning(
                    f"{type(error).__name__}: stopping what was started: {', '.join(started)}"
                )
                _stop(project, started)
            raise
    for line in _limits(project):
        logger.info(line)
    return project


def _with_accounts(project: Project, accounts: Mapping[str, str]) -> Project:
    """Return the project with its sites in these accounts, after all checks, written down."""
    if accounts == project.accounts == {}:
        return project
    running = [site for site in project.sites if processes.running(project, site)]
    if accounts != project.accounts and running:
        raise ConfigError(
            f"{', '.join(running)}: still in the account of an earlier start; secede flower down "
            f"{project.folder}, then repeat this command"
        )
    changed = replace(project, accounts=dict(accounts))
    site_accounts.prepare(changed)
    if accounts != project.accounts:
        with files.private():
            changed.write()
    return changed


def _limits(project: Project) -> list[str]:
    """Return what others can reach, and what runs in one account that should not."""
    where = project.superlink_address
    if port_guard.names_peers():
        others = "and machines" if project.open_to_others else "of this machine"
        lines = [
            f"other accounts {others} may act as sites at {where}, with a registered key; only "
            "processes of this account start runs"
        ]
    else:
        lines = [
            f"every program on this machine may start runs at {where}, which are code in this "
            "account"
        ]
    return lines + ([_accounts_line(project)] if project.local_sites else [])


def _accounts_line(project: Project) -> str:
    """Return in whose accounts the sites run, and what a run's code reads there."""
    named = [project.accounts[site] for site in project.local_sites if site in project.accounts]
    if not named:
        remedy = "start each with site.sh in an account of its own"
        if os.geteuid() == 0:
            remedy = "give each an account with --site-account SITE=ACCOUNT, or one ACCOUNT for all"
        return (
            f"sites run in this account, so a run's code there can read {project.home}: for more "
            f"than a try-out, {remedy}"
        )
    shared = "" if len(set(named)) == len(named) else "; those that share one read each other's"
    which = ", ".join(f"{site} as {name}" for site, name in project.accounts.items())
    return f"a run's code at the sites cannot read {project.home}: {which}{shared}"


def status(project: Project) -> list[ProcessStatus]:
    """Return the status of each process."""
    running = {name: processes.running(project, name) for name in (SUPERLINK, *project.sites)}
    nodes: dict[str, str] = {}
    link = "no"
    if running[SUPERLINK] is not None:
        with suppress(SecedeError):
            nodes, link = node_statuses(project), "yes"
    rows = [ProcessStatus(SUPERLINK, _pid(running[SUPERLINK]), link, None)]
    for site in project.sites:
        node = _node(project, site)
        online = {"online": "yes"}.get(nodes.get(node or "", ""), "no") if link == "yes" else "–"
        rows.append(ProcessStatus(site, _pid(running[site]), online, node))
    return rows


def down(project: Project, only: Iterable[str] | None = None) -> None:
    """Stop all, or only some, of the project's processes and their child processes."""
    with processes.locked(project):
        names = (*project.sites, SUPERLINK) if only is None else tuple(only)
        for name in names:
            if name not in (*project.sites, SUPERLINK):
                raise ConfigError(
                    f"no process {name!r}: expected {SUPERLINK}, {', '.join(project.sites)}"
                )
        _stop(project, names)
        if only is None:
            # Also a child that appears a moment later.
            _end(lambda: processes.with_environment(MARK, str(project.folder)), "was left behind")


def _superlink(project: Project, started: list[str]) -> Project:
    if (process := processes.running(project, SUPERLINK)) is not None:
        logger.info(
            f"{SUPERLINK} runs already, process {process.pid}, at {project.superlink_address}"
        )
        return project
    if not processes.is_free(project.listen, project.port):
        if any(processes.running(project, site) for site in project.sites):
            raise ConfigError(
                f"port {project.port} is taken by another program, and running sites expect the "
                "SuperLink there: free it, or stop the sites first"
            )
        logger.info(f"port {project.port} is taken; choosing another one")
        project = replace(project, port=processes.free_port(project.listen))
    project.write()
    started.append(SUPERLINK)
    process_ = processes.start(project, SUPERLINK, superlink_command(project))
    logger.info(f"{SUPERLINK} started, process {process_.pid}, at {project.superlink_address}")
    _wait_answer(project, process_)
    return project


def _wait_answer(project: Project, process: subprocess.Popen[bytes]) -> None:
    """Wait until the SuperLink answers with a certificate that the authority signed."""
    context = ssl.create_default_context(cafile=str(project.authority))
    deadline = time.monotonic() + LINK_TIMEOUT
    logger.info(f"waiting for {SUPERLINK} to answer, at most {LINK_TIMEOUT:g} seconds")
    while time.monotonic() < deadline:
        if process.poll() is not None:
            tail = processes.log_tail(project, SUPERLINK)
            raise SecedeError(f"{SUPERLINK} ended with code {process.returncode}: {tail}")
        try:
            with (
                socket.create_connection((project.address, project.port), timeout=5) as plain,
                context.wrap_socket(plain, server_hostname=project.address),
            ):
                return
        except ssl.SSLCertVerificationError as error:
            raise SecedeError(
                f"{project.superlink_address} shows a certificate that is not the project's: "
                f"{error.verify_message}"
            ) from error
        except OSError:
            time.sleep(_POLL)
    raise SilentError(
        f"{SUPERLINK} did not answer within {LINK_TIMEOUT:g} seconds: see {project.log(SUPERLINK)}"
    )


def _register(project: Project) -> None:
    known = processes.registered(project) if project.database.exists() else {}
    for site in project.sites:
        if site not in known:
            node = register_site(project, site)
            if node is not None:
                known[site] = node
                processes.write_registered(project, known)
            logger.info(f"{site} is registered" + (f" as node {node}" if node else " already"))


def _supernodes(project: Project, started: list[str]) -> dict[str, int]:
    """Start the sites that do not run; return the size that each one's log had before."""
    fresh = {}
    for site in project.sites:
        if site not in project.local_sites:
            logger.info(f"{site} is not started: its private key is elsewhere, and so is the site")
            continue
        if (process := processes.running(project, site)) is not None:
            logger.info(f"{site} runs already, process {process.pid}")
            continue
        _end_left_behind(project, site)
        started.append(site)
        fresh[site] = _start_site(project, site)
    return fresh


def _end_left_behind(project: Project, site: str) -> None:
    """Stop the child processes of a killed SuperNode: an app waits for ever for its input from it.

    It stops only processes that `up` started: those of a SuperNode started by hand have no mark.
    """
    home = project.environment(site)["FLWR_HOME"]

    def strays() -> list[processes.Process]:
        ours = {process.pid for process in processes.with_environment(MARK, str(project.folder))}
        return [
            process
            for process in processes.with_environment("FLWR_HOME", home)
            if process.pid in ours
        ]

    for process in strays():
        if str(project.key(site)) in process.command:
            raise SecedeError(
                f"{site} runs as process {process.pid}, but its record is lost: secede flower down "
                f"{project.folder} stops it"
            )
    _end(strays, f"was left behind by {site}")


def _start_site(project: Project, site: str) -> int:
    """Start a site's SuperNode; return the size that its log had before."""
    before = processes.log_size(project, site)
    command = supernode_command(project, site, processes.free_port())
    logger.info(f"{site} started, process {processes.start(project, site, command).pid}")
    return before


def _wait_online(project: Project, fresh: dict[str, int], timeout: float) -> None:
    """Wait until all sites are online; a killed node still counts as online for a while."""
    deadline, awaited = time.monotonic() + timeout, set(project.local_sites)
    logger.info(f"waiting for {len(awaited)} sites to be online, at most {timeout:g} seconds")
    while awaited:
        for site in project.local_sites:
            if processes.running(project, site) is None:
                _restart(project, site, fresh, deadline)
        nodes = node_statuses(project)
        joined = {
            s for s in awaited if s not in fresh or processes.node_in_log(project, s, fresh[s])
        }
        online = {s for s in joined if nodes.get(_node(project, s) or "") == "online"}
        for site in sorted(online):
            logger.info(f"{site} is online")
        awaited -= online
        if awaited and time.monotonic() > deadline:
            raise SilentError(
                f"{', '.join(sorted(awaited))} not online within {timeout:g} seconds: see "
                f"{project.log(min(awaited))}"
            )


def _restart(project: Project, site: str, fresh: dict[str, int], deadline: float) -> None:
    """Start a refused site again: for some 40 seconds after a kill its key counts as in use.

    SecedeError with the end of its log if the site ended for any other reason.
    """
    refused = site in fresh and processes.was_refused(project, site, fresh[site])
    if not refused or time.monotonic() > deadline:
        raise SecedeError(f"{site} ended: {processes.log_tail(project, site)}")
    logger.info(
        f"{site} is refused while the SuperLink takes the killed one for online; starting it again"
    )
    time.sleep(_RESTART_PAUSE)
    fresh[site] = _start_site(project, site)


def _stop(project: Project, names: Iterable[str]) -> None:
    """Stop processes and their descendants, each within a timeout."""
    for name in names:
        process = processes.running(project, name)
        if process is None:
            processes.forget(project, name)
            continue
        children = processes.descendants([process.pid])
        alive = processes.stop([process], STOP_TIMEOUT)
        alive += processes.stop(children, STOP_TIMEOUT / 4)
        if alive:
            raise SecedeError(f"{name}: process {alive[0].pid} cannot be stopped")
        processes.forget(project, name)
        logger.info(f"{name} stopped, process {process.pid}")


def _end(find: Callable[[], list[processes.Process]], reason: str) -> None:
    """Stop the processes that `find` returns, until it returns none."""
    deadline = time.monotonic() + SWEEP_TIMEOUT
    while strays := find():
        if time.monotonic() > deadline:
            raise SecedeError(
                f"process {strays[0].pid} was started anew, {SWEEP_TIMEOUT:g} seconds after all "
                "were stopped: find and stop the program that starts it"
            )
        for stray in strays:
            logger.warning(f"process {stray.pid} {reason} and is stopped")
        if alive := processes.stop(strays, STOP_TIMEOUT / 4):
            raise SecedeError(f"process {alive[0].pid} cannot be stopped")
        time.sleep(_POLL)


def _node(project: Project, site: str) -> str | None:
    return processes.registered(project).get(site) or processes.node_in_log(project, site)


def _pid(process: processes.Process | None) -> int | None:
    return None if process is None else process.pid


def superlink_command(project: Project) -> list[str]:
    """Return the command that starts the SuperLink, with TLS and node authentication."""
    tls = project.certificates
    return [
        *_guarded("flower-superlink", project.environment(SUPERLINK)),
        *("--ssl-ca-certfile", str(project.authority)),
        *("--ssl-certfile", str(tls / "server.crt")),
        *("--ssl-keyfile", str(tls / "server.key")),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--host", project.listen),
        *("--port", str(project.port)),
        *("--database", str(project.database)),
    ]


def supernode_command(project: Project, site: str, port: int) -> list[str]:
    """Return the command that starts a site's SuperNode; its own processes use `port`."""
    return [
        *_guarded("flower-supernode", project.environment(site)),
        *("--root-certificates", str(project.authority)),
        *("--superlink", project.superlink_address),
        *("--auth-supernode-private-key", str(project.key(site))),
        *("--port", str(port)),
        *("--node-config", _node_config(project, site)),
    ]


def _guarded(name: str, environment: Mapping[str, str]) -> list[str]:
    return [sys.executable, "-m", "secede.flower.deploy.port_guard", program(name, environment)]


def _node_config(project: Project, site: str) -> str:
    """Return the node config that the app at a site gets."""
    folder = project.updates_folder(site)
    number, total = project.sites.index(site), len(project.sites)
    config = f'partition-id={number} num-partitions={total} site="{site}"'
    config += f" secede-folder={_quoted(folder)}"
    key = folder / f"{site}.key"  # of `secede keygen`: signs what the site's canaries say
    return f"{config} secede-key={_quoted(key)}" if key.exists() else config


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def register_site(project: Project, site: str) -> str | None:
    """Register a site's public key and name; return its node id, None if it was registered."""
    key = str(project.key(site).with_suffix(".pub"))
    try:
        return str(flwr(project, "supernode", "register", "--name", site, key)["node-id"])
    except SilentError:
        raise
    except SecedeError as error:
        if "already in use" in str(error):
            return None
        raise


def node_statuses(project: Project) -> dict[str, str]:
    """Return the status of each registered node, such as online."""
    listed = flwr(project, "supernode", "list")["nodes"]
    return {str(node["node-id"]): str(node["status"]) for node in listed}
