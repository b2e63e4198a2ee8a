"""Put a Flower project up and down, and tell how it stands."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from secede.errors import ConfigError, SecedeError
from secede.flower.deploy import processes, runs, supervisor
from secede.flower.deploy.project import SUPERLINK, Project
from secede.flower.deploy.scaffold import write_project

if TYPE_CHECKING:
    from secede.erasure.planning.options import EraseOptions
    from secede.flower.deploy.results import ErasureResult

_ASKED = 15.0  # seconds that a SuperLink which is to be stopped has to tell its runs


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
    supervisor.up(Project.load(folder), seconds=seconds)
    status(folder, as_json=as_json)


def status(folder: Path, *, as_json: bool) -> None:
    """Show how each process stands, and which runs have not ended."""
    project = Project.load(folder)
    rows = supervisor.status(project)
    under_way = runs.active(project) if rows[0].online == "yes" else []
    if as_json:
        told = {"processes": [asdict(r) for r in rows], "runs": [asdict(r) for r in under_way]}
        print(json.dumps(told, indent=2, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE)
    for name in ("process", "pid", "online", "node"):
        table.add_column(name)
    for row in rows:
        pid = "not running" if row.pid is None else str(row.pid)
        table.add_row(*(Text(cell) for cell in (row.name, pid, row.online, row.node or "–")))
    Console().print(table)
    for run in under_way:
        print(f"run {run.run} is {run.status}, for {run.seconds:.0f} seconds so far")
    if under_way:
        print(f"to end what runs: secede flower stop {folder}")


def stop(folder: Path, number: str | None, *, as_json: bool) -> None:
    """Stop one run, or all that have not ended."""
    project = Project.load(folder)
    runs.check_running(project)
    known = [run.run for run in runs.active(project)]
    if number is not None and number not in known:
        shown = ", ".join(known) or "none"
        raise ConfigError(f"run {number!r} is not under way: those that are: {shown}")
    stopped = known if number is None else [number]
    for one in stopped:
        runs.stop(project, one)
    if as_json:
        print(json.dumps({"stopped": stopped}, indent=2))
        return
    for one in stopped:
        print(f"run {one} is stopped; the command that began it goes on when it is given again")
    if not stopped:
        print("no run is under way")


def down(folder: Path, only: Sequence[str] | None) -> None:
    """Stop all, or only some, processes; runs end with the SuperLink, and are told."""
    project, cut = Project.load(folder), list[runs.Active]()
    if (only is None or SUPERLINK in only) and processes.running(project, SUPERLINK) is not None:
        with suppress(SecedeError):  # one that does not answer is to go all the same
            cut = runs.active(project, seconds=_ASKED)
    supervisor.down(project, only)
    for run in cut:
        _say(
            f"run {run.run} is cut short; the command that began it goes on when it is given again"
        )
    _say("nothing of it runs any more" if only is None else "stopped")


def train(
    folder: Path, rounds: int | None, seconds: float, *, from_scratch: bool | None, as_json: bool
) -> None:
    """Train the project's app to its end."""
    from secede.flower.deploy import preflight

    project = Project.load(folder)
    runs.check_running(project)
    wished = {"from_scratch": bool(from_scratch), "go_on": from_scratch is False}
    preflight.config(project.app, {"num-server-rounds": preflight.ROUNDS, "erasure.home": ""})
    asked = preflight.training(project.home, rounds, **wished)
    _say(asked.words)
    config: runs.Config = {"num-server-rounds": asked.rounds, "erasure.home": str(project.home)}
    before = _rounds(project)
    number = runs.run(project, config, seconds=seconds, show=_say)
    done = _rounds(project)
    if done == before:
        raise SecedeError(f"run {number} completed no round: no site sent an update, see above")
    if as_json:
        print(json.dumps({"run": number, "rounds": done, "home": str(project.home)}, indent=2))
    else:
        print(f"{project.home}  {done} rounds so far, their model and who contributed")


def erase(
    folder: Path,
    leaver: str,
    *,
    trigger: str | None,
    request: Path | None,
    wishes: EraseOptions,
    gone: bool,
    as_it_is: bool,
    dry_run: bool,
    seconds: float,
    as_json: bool,
) -> None:
    """Erase with the project's app, and verify the receipt that came of it; or show the plan."""
    from secede.cli.requests import signed
    from secede.erasure.documents.request import TRIGGERS, check_trigger
    from secede.erasure.planning.options import EraseOptions
    from secede.erasure.planning.options import as_json as kept
    from secede.flower.deploy import preflight, results

    if dry_run and as_it_is:
        raise ConfigError(
            "--dry-run writes nothing, and --as-it-is writes down that a training that was cut "
            "short is taken as it is: give one of them"
        )
    project = Project.load(folder)
    config = {"erasure.home": str(project.home), "erasure.leaver": leaver}
    if trigger:
        config["erasure.trigger"] = check_trigger(trigger)
    earlier = None if dry_run else results.already(project.home, leaver)
    options = {
        "options": {} if wishes == EraseOptions() else kept(wishes),
        "gone": gone,
        "request": str(request.absolute()) if request and earlier is None else "",
        "dry_run": dry_run,
    }
    if asked := {name: value for name, value in options.items() if value}:
        config["erasure.options"] = json.dumps(asked)
    preflight.config(project.app, config)
    preflight.leaving(project.home, leaver)
    if request is not None:
        signed(request)
    before = results.request(project.home, leaver)
    if not (dry_run or earlier or trigger or request or (before is not None and before.open)):
        raise ConfigError(f"say why {leaver} leaves: --trigger {', '.join(TRIGGERS[:-1])} or other")
    if earlier is not None:
        _say(f"{_already(earlier)}; receipt {earlier.receipt}; nothing is erased again")
    try:
        runs.check_running(project)
        taken = as_it_is and earlier is None
        preflight.erasure(project.home, leaver, as_it_is=taken)
    except SecedeError as error:
        if earlier is None:
            raise
        _say(f"{earlier.client} is not asked once more to delete its updates: {error}")
        _show(earlier, None, again=True, as_json=as_json)
        return
    if dry_run:
        _show_plan(project, config, seconds, as_json=as_json)
        return
    try:
        number = runs.run(project, config, seconds=seconds, show=_say)
    except SecedeError:
        after = results.request(project.home, leaver)
        if after != before and after is not None and not after.open:
            results.verified(project.home, leaver)  # it failed because it was rolled back
        raise
    erased = results.already(project.home, leaver) or results.verified(project.home, leaver)
    _show(erased, number, again=erased == earlier, as_json=as_json)


def _show(erased: ErasureResult, run: str | None, *, again: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"run": run, "already": again, **erased.as_dict()}, indent=2))
        return
    done = _already(erased) if again else f"{erased.client} is erased"
    print(f"{done}: {erased.method} ({erased.rung})")
    print(f"{erased.receipt}  receipt, verified")
    print(f"{erased.page}  its page")


def _already(erased: ErasureResult) -> str:
    return f"{erased.client} was erased already, at {erased.promoted}"


def _show_plan(project: Project, config: runs.Config, seconds: float, *, as_json: bool) -> None:
    """Let the app plan, and show what it says."""
    from secede.erasure.documents.plan import Plan

    found: list[Plan] = []

    def show(line: str) -> None:
        if (plan := Plan.of_line(line)) is None:
            _say(line)
        else:
            found.append(plan)

    number = runs.run(project, config, seconds=seconds, show=show)
    if not found:
        raise SecedeError(f"run {number} told no plan: see {project.log(SUPERLINK)}")
    if as_json:
        print(found[-1].model_dump_json(indent=2))
    else:
        Console().print(found[-1].show())


def _rounds(project: Project) -> int:
    path = project.home / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
