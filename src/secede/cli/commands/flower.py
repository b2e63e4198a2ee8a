"""`secede flower`: a Flower federation set up, started, trained, erased from and stopped."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from secede.cli.commands.erase import EraseArguments, read_request_file, with_erase_options
from secede.cli.shared import Json, OptionalTrigger, print_json
from secede.errors import ConfigError, SecedeError

if TYPE_CHECKING:
    from secede.flower.deploy.project import Project
    from secede.flower.deploy.runs import Config
    from secede.flower.deploy.server_home import ErasureResult

logger = logging.getLogger(__name__)

Folder = Annotated[Path, typer.Argument(help="Folder of the project.")]

_STATUS_SECONDS = 15.0  # to ask a SuperLink that is about to stop for its runs
_AGAIN = "repeat the command that began it to continue"

group = typer.Typer(
    suggest_commands=False,  # click does it too
    name="flower",
    help="Set up a Flower federation to erase from.",
    no_args_is_help=True,
)


def _command(function: Callable[..., None]) -> None:
    """Register a command; without Flower it says what to install."""

    @functools.wraps(function)
    def run(**values: Any) -> None:
        try:
            import secede.flower  # noqa: F401
        except ImportError as error:
            raise ConfigError(str(error)) from error
        function(**values)

    group.command()(run)


@_command
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to make. Nothing is overwritten.")],
    sites: Annotated[int, typer.Option(min=2, help="Number of sites: site-1, site-2, ...")] = 3,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", help="Name of a site, instead of --sites. Repeatable."),
    ] = None,
    site_key: Annotated[
        list[str] | None,
        typer.Option(
            "--site-key",
            metavar="NAME=FILE.pub",
            help="Public key that a site made itself: no private one is made for it. Repeatable.",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Host name for the server's certificate. Repeatable."),
    ] = None,
    listen: Annotated[str, typer.Option(help="Address for the SuperLink.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port for the SuperLink.", show_default="a free one"),
    ] = None,
    json: Json = False,
) -> None:
    """Write a ready, secure Flower project.

    It has a private certificate authority, the server's certificate, a key pair for each site,
    scripts, and a Flower app that can erase. TLS and node authentication are on; telemetry and
    installs at run time are off. Only this machine reaches it, unless --listen is given.

    Example: secede flower init north --sites 5

    Another: secede flower init north --host fl.example.org --listen 0.0.0.0 --port 9092

    Where sites make their own keys: secede flower init north --sites 2 --site-key site-2=site-2.pub
    """
    from secede.flower.deploy.scaffold import parse_site_keys, write_project

    names = site or [f"site-{number}" for number in range(1, sites + 1)]
    project = write_project(
        folder,
        sites=names,
        hosts=host or [],
        listen=listen,
        port=port,
        site_keys=parse_site_keys(site_key or ()),
    )
    if project.open_to_others:
        logger.warning(
            f"the SuperLink will listen on {listen}, port {project.port}: other machines may act "
            "as sites there, with a registered key, and no more; open it to the sites' networks "
            "only"
        )
    if json:
        address, names = project.superlink_address, list(project.sites)
        print_json({"folder": str(folder), "superlink": address, "sites": names})
        return
    print(
        f"{folder}  Flower project of {', '.join(project.sites)}; "
        f"SuperLink at {project.superlink_address}"
    )
    print(f"{folder / 'certificates'}  private authority and the server's certificate")
    print(f"{folder / 'nodes'}  the sites' keys: give each site its own and keep no private one")
    print(f"{folder / 'app'}  the Flower app")
    print(f"{project.home / 'keys' / 'server.pub'}  the server's key, which requests name")
    print(f"Next: secede flower up {folder}")


@_command
def up(
    folder: Folder,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds to wait until all sites are online.")
    ] = 120.0,
    site_account: Annotated[
        list[str] | None,
        typer.Option(
            "--site-account",
            metavar="[SITE=]ACCOUNT",
            help="Account that a site, or all, run in, apart from home/. For root. Remembered.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Start a SuperLink and all sites on this machine.

    For a try-out: registers the sites, waits until they are online, and returns. Processes that run
    already are left alone. Logs are in FOLDER/logs.

    Example: secede flower up north

    Sites apart: secede flower up north --site-account site-1=fl-1 --site-account site-2=fl-2
    """
    from secede.flower.deploy import site_accounts, supervisor
    from secede.flower.deploy.project import Project

    project = Project.load(folder)
    accounts = site_accounts.parse(site_account or (), project.local_sites)
    supervisor.up(project, timeout=timeout, accounts=accounts)
    _print_status(folder, as_json=json)


@_command
def status(folder: Folder, json: Json = False) -> None:
    """Show each process, and the runs that have not ended.

    Example: secede flower status north
    """
    _print_status(folder, as_json=json)


@_command
def down(
    folder: Folder,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Stop only this: superlink, or a site's name. Repeatable."),
    ] = None,
) -> None:
    """Stop all processes, and whatever they started.

    A process is stopped by its id, after a check that it is still the project's own. Database, keys
    and homes stay, and `up` continues with them.

    Example: secede flower down north
    """
    from secede.flower.deploy import processes, runs, supervisor
    from secede.flower.deploy.project import SUPERLINK, Project

    project, active = Project.load(folder), list[runs.ActiveRun]()
    if (only is None or SUPERLINK in only) and processes.running(project, SUPERLINK) is not None:
        with suppress(SecedeError):  # one that does not answer is stopped all the same
            active = runs.active(project, timeout=_STATUS_SECONDS)
    supervisor.down(project, only)
    for run in active:
        logger.info(f"run {run.run} is cut short; {_AGAIN}")
    logger.info("no process of it runs any more" if only is None else "stopped")


@_command
def train(
    folder: Folder,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of rounds.",
            show_default="3, or those of a training that was cut short",
        ),
    ] = None,
    from_scratch: Annotated[
        bool | None,
        typer.Option(
            "--from-scratch/--resume",
            help="Start with fresh weights and replace the serving model; or take such a start "
            "back, and train the serving model.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the end.")] = 3600.0,
    json: Json = False,
) -> None:
    """Train the project's app on the running federation.

    It is one `flwr run`, followed to its end. Training continues from the serving model, unless
    --from-scratch is given; that is remembered until a round is completed, or --resume is given.
    Ctrl-C stops the run at the SuperLink. After that, or after a kill, the same command continues
    after the last completed round.

    Example: secede flower train north --rounds 5
    """
    from secede.flower.deploy import runs, server_home
    from secede.flower.deploy.project import Project

    project = Project.load(folder)
    runs.check_running(project)
    runs.check_config(project.app, {"num-server-rounds": server_home.ROUNDS, "erasure.home": ""})
    training = server_home.plan_training(
        project.home, rounds, from_scratch=bool(from_scratch), resume=from_scratch is False
    )
    logger.info(training.description)
    config: Config = {"num-server-rounds": training.rounds, "erasure.home": str(project.home)}
    before = server_home.count_rounds(project.home)
    number = runs.run(project, config, timeout=timeout, show=logger.info)
    after = server_home.count_rounds(project.home)
    if after == before:
        raise SecedeError(f"run {number} completed no round: no site sent an update, see above")
    if json:
        print_json({"run": number, "rounds": after, "home": str(project.home)})
    else:
        print(f"{project.home}  {after} rounds so far, their model and who contributed")


@_command
@with_erase_options
def erase(
    folder: Folder,
    leaver: Annotated[str, typer.Argument(help="The site: name:NAME, key:SHA-256 or node:ID.")],
    arguments: EraseArguments,
    trigger: OptionalTrigger = None,
    request: Annotated[
        Path | None,
        typer.Option(help="Request signed by the site.", show_default="the operator asks for it"),
    ] = None,
    accept_unfinished: Annotated[
        bool,
        typer.Option(
            "--accept-unfinished", help="Erase from the model of a training that was cut short."
        ),
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the end.")] = 86400.0,
    json: Json = False,
) -> None:
    """Erase a site from the model of the running federation.

    It is one `flwr run` with the project's app, months after training if need be. The plan is
    printed first. The receipt is in FOLDER/home/receipts and is verified here. A site that is
    offline is waited for until its deadline. Ctrl-C stops the run at the SuperLink; after that, or
    after a kill, the same command continues. A training that was cut short must be finished first
    (`secede flower train`), or accepted with --accept-unfinished.

    Example: secede flower erase north name:site-3 --trigger contract-ended

    Another: secede flower erase north name:site-3 --dry-run --leaver-gone
    """
    from secede.erasure import TRIGGERS, UNDECIDED, EraseOptions, check_trigger
    from secede.erasure import options_to_json as as_json
    from secede.flower.deploy import runs, server_home
    from secede.flower.deploy.project import Project

    options, dry_run = arguments.options(), arguments.dry_run
    if dry_run and accept_unfinished:
        raise ConfigError(
            "--dry-run writes nothing, and --accept-unfinished writes down that a training which "
            "was cut short is accepted: give one of them"
        )
    project = Project.load(folder)
    home = project.home
    arguments.check_rehearsal(home)
    config = {"erasure.home": str(home), "erasure.leaver": leaver}
    if trigger:
        config["erasure.trigger"] = check_trigger(trigger)
    earlier = None if dry_run else server_home.earlier_result(home, leaver)
    sent = {
        "options": {} if options == EraseOptions() else as_json(options),
        "leaver_gone": arguments.leaver_gone,
        "request": str(request.absolute()) if request and earlier is None else "",
        "dry_run": dry_run,
    }
    if given := {name: value for name, value in sent.items() if value}:
        config["erasure.options"] = dumps(given)
    runs.check_config(project.app, config)
    server_home.check_leaver(home, leaver)
    if request is not None:
        read_request_file(request)
    before = server_home.last_request(home, leaver)
    if not (dry_run or earlier or trigger or request or (before is not None and before.open)):
        raise ConfigError(
            "`--trigger` is required because the receipt states the reason for the erasure: choose "
            f"one of {', '.join(TRIGGERS)}"
        )
    if earlier is not None:
        logger.info(f"{_erased_at(earlier)}; receipt {earlier.receipt}; nothing is erased again")
    try:
        runs.check_running(project)
        server_home.prepare_erasure(
            home, leaver, accept_unfinished=accept_unfinished and earlier is None
        )
    except SecedeError as error:
        if earlier is None:
            raise
        logger.info(f"{earlier.client} is not asked again to delete its updates: {error}")
        _print_result(earlier, None, again=True, as_json=json)
        return
    if dry_run:
        _print_plan(project, config, timeout, as_json=json)
        return
    try:
        number = runs.run(project, config, timeout=timeout, show=logger.info)
    except SecedeError:
        after = server_home.last_request(home, leaver)
        if after is not None and (
            (after != before and not after.open)
            or (after.state == UNDECIDED and not options.accept_loss)
        ):  # raises if the erasure was rolled back, or if a person must decide
            server_home.verified_result(home, leaver)
        raise
    result = server_home.earlier_result(home, leaver) or server_home.verified_result(home, leaver)
    _print_result(result, number, again=result == earlier, as_json=json)


@_command
def stop(
    folder: Folder,
    run: Annotated[
        str | None, typer.Argument(help="Number of a run.", show_default="all runs")
    ] = None,
    json: Json = False,
) -> None:
    """Stop runs at the SuperLink; processes stay up.

    For a training or an erasure that waits, or whose command was killed. The same command as before
    continues it.

    Example: secede flower stop north
    """
    from secede.flower.deploy import runs
    from secede.flower.deploy.project import Project

    project = Project.load(folder)
    runs.check_running(project)
    active = [each.run for each in runs.active(project)]
    if run is not None and run not in active:
        shown = ", ".join(active) or "none"
        raise ConfigError(f"run {run!r} is not under way: those that are: {shown}")
    stopped = active if run is None else [run]
    for number in stopped:
        runs.stop(project, number)
    if json:
        print_json({"stopped": stopped})
        return
    for number in stopped:
        print(f"run {number} is stopped; {_AGAIN}")
    if not stopped:
        print("no run is under way")


def _print_status(folder: Path, *, as_json: bool) -> None:
    """Print how each process stands, and which runs have not ended."""
    from secede.flower.deploy import runs, supervisor
    from secede.flower.deploy.project import Project

    project = Project.load(folder)
    rows = supervisor.status(project)
    active = runs.active(project) if rows[0].online == "yes" else []
    if as_json:
        print_json({"processes": [asdict(r) for r in rows], "runs": [asdict(r) for r in active]})
        return
    table = Table(box=box.SIMPLE)
    for name in ("process", "pid", "online", "node"):
        table.add_column(name)
    for row in rows:
        pid = "not running" if row.pid is None else str(row.pid)
        table.add_row(*(Text(cell) for cell in (row.name, pid, row.online, row.node or "–")))
    Console().print(table)
    for run in active:
        print(f"run {run.run} is {run.status}, for {run.seconds:.0f} seconds so far")
    if active:
        print(f"to stop them: secede flower stop {folder}")


def _print_result(result: ErasureResult, run: str | None, *, again: bool, as_json: bool) -> None:
    if as_json:
        print_json({"run": run, "already": again, **asdict(result)})
        return
    done = _erased_at(result) if again else f"{result.client} is erased"
    print(f"{done}: {result.method} ({result.rung})")
    print(f"{result.receipt}  receipt, verified")
    print(f"{result.page}  its page")


def _erased_at(result: ErasureResult) -> str:
    return f"{result.client} was erased already, at {result.promoted}"


def _print_plan(project: Project, config: Config, timeout: float, *, as_json: bool) -> None:
    """Let the app plan, and print the plan that it logs."""
    from secede.erasure import Plan, plan_table
    from secede.flower.deploy import runs
    from secede.flower.deploy.project import SUPERLINK

    plans = list[Plan]()

    def show(line: str) -> None:
        if (plan := Plan.of_line(line)) is None:
            logger.info(line)
        else:
            plans.append(plan)

    number = runs.run(project, config, timeout=timeout, show=show)
    if not plans:
        raise SecedeError(f"run {number} printed no plan: see {project.log(SUPERLINK)}")
    if as_json:
        print(plans[-1].model_dump_json(indent=2))
    else:
        Console().print(plan_table(plans[-1]))
