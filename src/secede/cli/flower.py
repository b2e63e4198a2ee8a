"""Commands of a Flower federation: write a project, put it up, look at it, take it down."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from secede.cli.options import (
    AnswerSeconds,
    BackupsUntil,
    Distrust,
    DryRun,
    Gone,
    Instead,
    Json,
    LeastRounds,
    LiveTrigger,
    Mean,
    MeasureAtLeaver,
    Nearest,
    NoFading,
    PostTraining,
    Quorum,
    RetainedSeconds,
    Settings,
    WaitHours,
)
from secede.errors import ConfigError

Folder = Annotated[Path, typer.Argument(help="The project's folder.")]


def init(
    folder: Annotated[Path, typer.Argument(help="The folder to make; nothing is overwritten.")],
    sites: Annotated[int, typer.Option(min=2, help="How many: site-1, site-2, ...")] = 3,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", help="A site by its own name, instead of --sites; repeat it."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="A name of the server for its certificate; may be repeated."),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="The address that the SuperLink listens on.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Its port; a free one if absent.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a ready, secure Flower project.

    A private authority, the server's certificate, a key pair for each site, scripts, and a Flower
    app that can erase. TLS and node authentication are on; telemetry and installs at run time are
    off; nobody outside this machine reaches it until --listen says so.

    Example: secede flower init north --sites 5

    Another: secede flower init north --host fl.example.org --listen 0.0.0.0 --port 9092
    """
    deployed = _bodies()
    names = site or [f"site-{number}" for number in range(1, sites + 1)]
    deployed.init(folder, names, host or [], listen, port, as_json=json)


def up(
    folder: Folder,
    seconds: Annotated[
        float, typer.Option(min=1, help="To wait until all sites are online.")
    ] = 120.0,
    json: Json = False,
) -> None:
    """Start a SuperLink and all sites on this machine.

    For a try-out: registers the sites, waits until they are online, and returns. What runs
    already is left running. Logs lie in FOLDER/logs.

    Example: secede flower up north
    """
    deployed = _bodies()
    deployed.up(folder, seconds, as_json=json)


def status(folder: Folder, json: Json = False) -> None:
    """Show each process, and the runs that have not ended.

    Example: secede flower status north
    """
    deployed = _bodies()
    deployed.status(folder, as_json=json)


def down(
    folder: Folder,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="superlink, or a site's name; may be repeated."),
    ] = None,
) -> None:
    """Stop all processes, and whatever they started.

    Each is stopped by its id, after a look whether it is still the project's own. Database, keys
    and homes stay: `up` goes on with them.

    Example: secede flower down north
    """
    deployed = _bodies()
    deployed.down(folder, only)


def train(
    folder: Folder,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="How many rounds; 3, or those of a training that was cut short."),
    ] = None,
    from_scratch: Annotated[
        bool | None,
        typer.Option(
            "--from-scratch/--go-on",
            help="Begin anew, and replace the model that serves; or take such a wish back, and "
            "train on from that model at once.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="To wait for the end.")] = 3600.0,
    json: Json = False,
) -> None:
    """Train the project's app on the running federation.

    It goes on from the model that serves, and says so; --from-scratch begins with fresh weights,
    and is remembered until a round has been completed, or --go-on takes it back
    and trains at once, from the model that serves.
    One `flwr run`, followed to its end. Ctrl-C stops it at the SuperLink. After that, or a kill of
    the SuperLink or the app, the same command goes on after the last completed round.

    Example: secede flower train north --rounds 5
    """
    deployed = _bodies()
    deployed.train(folder, rounds, seconds, from_scratch=from_scratch, as_json=json)


def erase(
    folder: Folder,
    leaver: Annotated[str, typer.Argument(help="name:NAME, key:SHA-256 or node:ID.")],
    trigger: LiveTrigger = None,
    request: Annotated[
        Path | None,
        typer.Option(help="What the site signed; without it the operator asks for it."),
    ] = None,
    as_it_is: Annotated[
        bool,
        typer.Option("--as-it-is", help="Take the model of a training that was cut short."),
    ] = False,
    dry_run: DryRun = False,
    method: Instead = None,
    setting: Settings = None,
    rounds: PostTraining = None,
    least_rounds: LeastRounds = None,
    mean: Mean = "mean",
    distrust: Distrust = False,
    gone: Gone = False,
    answer_seconds: AnswerSeconds = None,
    wait_hours: WaitHours = 0,
    nearest: Nearest = None,
    quorum: Quorum = None,
    retained_seconds: RetainedSeconds = None,
    measure_at_leaver: MeasureAtLeaver = False,
    no_fading: NoFading = False,
    backups_until: BackupsUntil = None,
    seconds: Annotated[float, typer.Option(min=1, help="To wait for the end.")] = 86400.0,
    json: Json = False,
) -> None:
    """Erase a site from the model of the running federation.

    One `flwr run` with the project's app, months after training if need be; its plan is printed
    first. A site that is offline is waited for until its deadline. Ctrl-C stops the run at the
    SuperLink; the same command goes on where it was, also after a kill. A training that was cut
    short is finished first (`secede flower train`), or taken --as-it-is. The receipt lies in
    FOLDER/home/receipts and is verified here.

    Example: secede flower erase north name:site-3 --trigger contract-ended

    Another: secede flower erase north name:site-3 --dry-run --gone
    """
    deployed = _bodies()
    from secede.cli import wishes

    wished = wishes.of(
        methods=method or (),
        settings=setting or (),
        distrust=distrust,
        rounds=rounds,
        least_rounds=least_rounds,
        mean=mean,
        answer_seconds=answer_seconds,
        wait=timedelta(hours=wait_hours),
        nearest=nearest,
        quorum=quorum,
        retained_seconds=retained_seconds,
        measure_at_leaver=measure_at_leaver,
        fading=not no_fading,
        backups_until=backups_until,
    )
    deployed.erase(
        folder,
        leaver,
        trigger=trigger,
        request=request,
        wishes=wished,
        gone=gone,
        as_it_is=as_it_is,
        dry_run=dry_run,
        seconds=seconds,
        as_json=json,
    )


def stop(
    folder: Folder,
    run: Annotated[str | None, typer.Argument(help="A run's number; all if absent.")] = None,
    json: Json = False,
) -> None:
    """Stop runs at the SuperLink; the same command as before goes on.

    For a training or an erasure whose command was killed, or that waits. Processes stay up.

    Example: secede flower stop north
    """
    deployed = _bodies()
    deployed.stop(folder, run, as_json=json)


def _bodies() -> ModuleType:
    try:
        from secede.cli import deployed
    except ImportError as error:  # without Flower
        raise ConfigError(str(error)) from error
    return deployed


group = typer.Typer(help="Put up a Flower federation to erase from.", no_args_is_help=True)
group.callback()(lambda: None)
for command in (init, up, status, down, train, erase, stop):
    group.command()(command)
