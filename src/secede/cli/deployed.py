"""Put a Flower project up and down, and tell how it stands."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from secede.errors import SecedeError
from secede.flower.deploy import local, runs
from secede.flower.deploy.project import Project
from secede.flower.deploy.scaffold import write_project


def init(
    folder: Path,
    sites: Sequence[str],
    hosts: Sequence[str],
    listen: str,
    port: int | None,
    *,
    as_json: bool,
) -> None:
    """Write a project."""
    project = write_project(folder, sites=sites, hosts=hosts, listen=listen, port=port)
    if project.open_to_others:
        _say(
            f"warning: the SuperLink will listen on {listen}: whoever reaches port {project.port} "
            "may start runs, and their code runs at the sites; open it to the sites' networks only"
        )
    if as_json:
        told = {"folder": str(folder), "superlink": project.reached, "sites": list(project.sites)}
        print(json.dumps(told, indent=2))
        return
    print(f"{folder}  Flower project of {', '.join(project.sites)}; SuperLink at {project.reached}")
    print(f"{folder / 'certificates'}  private authority and the server's certificate")
    print(f"{folder / 'nodes'}  the sites' keys: give each site its own and keep none")
    print(f"{folder / 'app'}  the Flower app")
    print(f"Next: secede flower up {folder}")


def up(folder: Path, seconds: float, *, as_json: bool) -> None:
    """Start what does not run yet."""
    local.up(Project.load(folder), _say, seconds=seconds)
    status(folder, as_json=as_json)


def status(folder: Path, *, as_json: bool) -> None:
    """Show how each process stands."""
    rows = local.status(Project.load(folder))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE)
    for name in ("process", "pid", "online", "node"):
        table.add_column(name)
    for row in rows:
        pid = "not running" if row.pid is None else str(row.pid)
        table.add_row(*(Text(cell) for cell in (row.name, pid, row.online, row.node or "–")))
    Console().print(table)


def down(folder: Path, only: Sequence[str] | None) -> None:
    """Stop all, or only some, processes."""
    local.down(Project.load(folder), _say, only)
    _say("nothing of it runs any more" if only is None else "stopped")


def train(folder: Path, rounds: int, seconds: float, *, as_json: bool) -> None:
    """Train the project's app to its end."""
    project = Project.load(folder)
    config: runs.Config = {"num-server-rounds": rounds, "erasure.home": str(project.home)}
    before = _rounds(project)
    number = runs.run(project, config, seconds=seconds, tell=_say)
    done = _rounds(project)
    if done == before:
        raise SecedeError(f"run {number} completed no round: no site sent an update, see above")
    if as_json:
        print(json.dumps({"run": number, "rounds": done, "home": str(project.home)}, indent=2))
    else:
        print(f"{project.home}  {done} rounds so far, their model and who contributed")


def erase(folder: Path, leaver: str, seconds: float, *, as_json: bool) -> None:
    """Erase with the project's app, and verify the receipt that came of it."""
    from secede.flower.deploy import outcomes

    project = Project.load(folder)
    config = {"erasure.home": str(project.home), "erasure.leaver": leaver}
    before = outcomes.request(project.home, leaver)
    try:
        number = runs.run(project, config, seconds=seconds, tell=_say)
    except SecedeError:
        after = outcomes.request(project.home, leaver)
        if after != before and after is not None and not after.open:
            outcomes.verified(project.home, leaver)  # it failed because it was rolled back
        raise
    erased = outcomes.verified(project.home, leaver)
    if as_json:
        print(json.dumps({"run": number, **erased.as_dict()}, indent=2))
        return
    print(f"{erased.client} is erased: {erased.method} ({erased.rung})")
    print(f"{erased.receipt}  receipt, verified")
    print(f"{erased.page}  its page")


def _rounds(project: Project) -> int:
    path = project.home / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
