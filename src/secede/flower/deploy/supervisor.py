"""A federation on this machine for a try-out: put up, looked at, taken down.

Every wait has an end and says what it waits for. What a failed start began, it ends.
"""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from secede.errors import ConfigError, SecedeError, SilentError
from secede.flower.deploy import flwr_cli, processes
from secede.flower.deploy.project import MARK, SUPERLINK, Project

logger = logging.getLogger(__name__)

LINK_SECONDS, NODE_SECONDS, STOP_SECONDS, SWEEP_SECONDS = 90.0, 120.0, 20.0, 60.0
_POLL = 0.3
_AGAIN = 3.0  # seconds before a refused site is started again


@dataclass(frozen=True)
class ProcessStatus:
    """How one process stands."""

    name: str
    pid: int | None
    online: str  # as the SuperLink sees it: yes, no, or – where it cannot be asked
    node: str | None


def up(project: Project, *, seconds: float = NODE_SECONDS) -> Project:
    """Start what does not run yet, and wait until all sites are online."""
    with processes.locked(project):
        started: list[str] = []
        try:
            project = _superlink(project, started)
            _register(project)
            fresh = _supernodes(project, started)
            _wait_online(project, fresh, seconds)
        except BaseException as error:
            if started:
                logger.info(
                    f"{type(error).__name__}: stopping what was started: {', '.join(started)}"
                )
                _stop(project, started)
            raise
    return project


def status(project: Project) -> list[ProcessStatus]:
    """Return how each process stands."""
    found = {name: processes.running(project, name) for name in (SUPERLINK, *project.sites)}
    known: dict[str, str] = {}
    link = "no"
    if found[SUPERLINK] is not None:
        try:
            known, link = flwr_cli.nodes(project), "yes"
        except SecedeError:
            link = "no"
    rows = [ProcessStatus(SUPERLINK, _pid(found[SUPERLINK]), link, None)]
    for site in project.sites:
        node = _node(project, site)
        online = {"online": "yes"}.get(known.get(node or "", ""), "no") if link == "yes" else "–"
        rows.append(ProcessStatus(site, _pid(found[site]), online, node))
    return rows


def down(project: Project, only: Iterable[str] | None = None) -> None:
    """Stop all, or only some, of the project's processes, and whatever they started."""
    with processes.locked(project):
        names = (*project.sites, SUPERLINK) if only is None else tuple(only)
        for name in names:
            if name not in (*project.sites, SUPERLINK):
                raise ConfigError(
                    f"no process {name!r}: expected {SUPERLINK}, {', '.join(project.sites)}"
                )
        _stop(project, names)
        if only is None:
            _sweep(project)


def _superlink(project: Project, started: list[str]) -> Project:
    if (process := processes.running(project, SUPERLINK)) is not None:
        logger.info(f"{SUPERLINK} runs already, process {process.pid}, at {project.reached}")
        return project
    if not processes.is_free(project.listen, project.port):
        if any(processes.running(project, site) for site in project.sites):
            raise ConfigError(
                f"port {project.port} is taken by another program, and running sites expect the "
                "SuperLink there: free it, or take the sites down first"
            )
        logger.info(f"port {project.port} is taken; another one is chosen")
        project = project.at(processes.free_port(project.listen))
    project.write()
    started.append(SUPERLINK)
    process_ = processes.start(project, SUPERLINK, flwr_cli.superlink(project))
    logger.info(f"{SUPERLINK} started, process {process_.pid}, at {project.reached}")
    _wait_answer(project, process_)
    return project


def _wait_answer(project: Project, process: subprocess.Popen[bytes]) -> None:
    """Wait until the SuperLink shakes hands under a certificate that the authority signed."""
    context = ssl.create_default_context(cafile=str(project.authority))
    deadline = time.monotonic() + LINK_SECONDS
    logger.info(f"waiting for {SUPERLINK} to answer, at most {LINK_SECONDS:g} seconds")
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = processes.log_tail(project, SUPERLINK)
            raise SecedeError(f"{SUPERLINK} ended with code {process.returncode}: {said}")
        try:
            with (
                socket.create_connection((project.address, project.port), timeout=5) as plain,
                context.wrap_socket(plain, server_hostname=project.address),
            ):
                return
        except ssl.SSLCertVerificationError as error:
            raise SecedeError(
                f"{project.reached} shows a certificate that is not the project's: "
                f"{error.verify_message}"
            ) from error
        except OSError:
            time.sleep(_POLL)
    raise SilentError(
        f"{SUPERLINK} did not answer within {LINK_SECONDS:g} seconds: see {project.log(SUPERLINK)}"
    )


def _register(project: Project) -> None:
    known = processes.registered(project) if project.database.exists() else {}
    for site in project.sites:
        if site not in known:
            node = flwr_cli.register(project, site)
            if node is not None:
                known[site] = node
                processes.write_registered(project, known)
            logger.info(f"{site} is registered" + (f" as node {node}" if node else " already"))


def _supernodes(project: Project, started: list[str]) -> dict[str, int]:
    """Start what does not run; return how long the logs of those were before."""
    fresh = {}
    for site in project.sites:
        if (process := processes.running(project, site)) is not None:
            logger.info(f"{site} runs already, process {process.pid}")
            continue
        _end_left_behind(project, site)
        project.kept(site).mkdir(parents=True, exist_ok=True)
        started.append(site)
        fresh[site] = _start_site(project, site)
    return fresh


def _end_left_behind(project: Project, site: str) -> None:
    """End what a killed SuperNode had started: an app whose input it held waits for it for ever.

    Only what `up` once started: a SuperNode that was started by hand bears no mark.
    """
    here = project.environment(site)["FLWR_HOME"]

    def strays() -> list[processes.Process]:
        ours = {process.pid for process in processes.with_environment(MARK, str(project.folder))}
        return [
            process
            for process in processes.with_environment("FLWR_HOME", here)
            if process.pid in ours
        ]

    for process in strays():
        if str(project.key(site)) in process.command:
            raise SecedeError(
                f"{site} runs as process {process.pid}, but its record is lost: secede flower down "
                f"{project.folder} ends it"
            )
    _end(strays, f"was left behind by {site}")


def _start_site(project: Project, site: str) -> int:
    """Start a site's SuperNode; return how long its log was before."""
    before = processes.log_size(project, site)
    command = flwr_cli.supernode(project, site, processes.free_port())
    logger.info(f"{site} started, process {processes.start(project, site, command).pid}")
    return before


def _wait_online(project: Project, fresh: dict[str, int], seconds: float) -> None:
    """Wait for all; the SuperLink goes on calling a killed node online for a while."""
    deadline, waited = time.monotonic() + seconds, set(project.sites)
    logger.info(f"waiting for {len(waited)} sites to be online, at most {seconds:g} seconds")
    while waited:
        for site in project.sites:
            if processes.running(project, site) is None:
                _restart(project, site, fresh, deadline)
        known = flwr_cli.nodes(project)
        there = {s for s in waited if s not in fresh or processes.node_in_log(project, s, fresh[s])}
        now = {s for s in there if known.get(_node(project, s) or "") == "online"}
        for site in sorted(now):
            logger.info(f"{site} is online")
        waited -= now
        if waited and time.monotonic() > deadline:
            raise SilentError(
                f"{', '.join(sorted(waited))} not online within {seconds:g} seconds: see "
                f"{project.log(min(waited))}"
            )


def _restart(project: Project, site: str, fresh: dict[str, int], deadline: float) -> None:
    """Start a site again that was refused: for some 40 seconds after a kill its key counts as used.

    A site that ended for any other reason is told with its last words.
    """
    refused = site in fresh and processes.was_refused(project, site, fresh[site])
    if not refused or time.monotonic() > deadline:
        raise SecedeError(f"{site} ended: {processes.log_tail(project, site)}")
    logger.info(
        f"{site} is refused while the SuperLink takes it for the one that was killed; once more"
    )
    time.sleep(_AGAIN)
    fresh[site] = _start_site(project, site)


def _stop(project: Project, names: Iterable[str]) -> None:
    """Stop processes and their families, each within a bounded time."""
    for name in names:
        process = processes.running(project, name)
        if process is None:
            processes.forget(project, name)
            continue
        children = processes.descendants([process.pid])
        left = processes.stop([process], STOP_SECONDS)
        left += processes.stop(children, STOP_SECONDS / 4)
        if left:
            raise SecedeError(f"{name}: process {left[0].pid} cannot be ended")
        processes.forget(project, name)
        logger.info(f"{name} stopped, process {process.pid}")


def _sweep(project: Project) -> None:
    """End what a killed process left behind; one that is just being started shows a bit later."""
    _end(lambda: processes.with_environment(MARK, str(project.folder)), "was left behind")


def _end(find: Callable[[], list[processes.Process]], why: str) -> None:
    """End what is found, until nothing is."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while strays := find():
        if time.monotonic() > deadline:
            raise SecedeError(
                f"process {strays[0].pid} was started anew, {SWEEP_SECONDS:g} seconds after all "
                "were stopped: who starts it?"
            )
        for stray in strays:
            logger.info(f"process {stray.pid} {why} and is stopped")
        if left := processes.stop(strays, STOP_SECONDS / 4):
            raise SecedeError(f"process {left[0].pid} cannot be ended")
        time.sleep(_POLL)


def _node(project: Project, site: str) -> str | None:
    return processes.registered(project).get(site) or processes.node_in_log(project, site)


def _pid(process: processes.Process | None) -> int | None:
    return None if process is None else process.pid
