"""Commands at the server: found a federation, erase, countersign; `app.py` registers them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from secede.cli.options import (
    AnswerSeconds,
    Auditors,
    BackupsUntil,
    Device,
    Distrust,
    DryRun,
    Gone,
    Instead,
    Json,
    LeastRounds,
    Limit,
    Mean,
    MeasureAtLeaver,
    Nearest,
    NoFading,
    PostTraining,
    Quorum,
    RetainedSeconds,
    Rounds,
    Settings,
    WaitHours,
)


def federation_init(
    home: Annotated[Path, typer.Argument(help="The folder that becomes the federation's home.")],
    experiment: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="See `secede presets`.")
    ] = "demo",
    name: Annotated[
        str | None, typer.Option(help="The federation's name; if absent, the experiment's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is random.")] = 0,
    rounds: Rounds = None,
    device: Device = None,
    limit: Limit = None,
    json: Json = False,
) -> None:
    """Train a simulated federation and set up its home.

    The home holds the serving model, the registry of models, journal, ledger and keys. Clients are
    called site-0, site-1, ...; what would lie at each of them, its private key too, lies in sites/.

    Example: secede federation init home demo --name north
    """
    from secede.cli import homes
    from secede.experiments import presets
    from secede.experiments.config import override

    changes = {"training.rounds": rounds, "device": device, "limit": limit}
    config = override(presets.load(experiment), changes)
    search = Path(experiment).resolve().parent if experiment.endswith(".toml") else Path.cwd()
    called = name or homes.name_of(config)
    homes.federation_init(home, config, name=called, seed=seed, search=search, as_json=json)


def erase(
    request: Annotated[Path, typer.Argument(help="The signed request.")],
    home: Annotated[Path, typer.Option(help="The federation's home folder.")],
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
    json: Json = False,
) -> None:
    """Erase a client, from its signed request to a receipt.

    The ladder: a local step at the leaver; a server-side method if it is gone, silent or refused;
    retraining. The retained clients' gate decides. Killed, the same command goes on where it was.

    Example: secede erase request.json --home home --dry-run

    Another: secede erase request.json --home home --mean median --backups-until 2027-01-31
    """
    from secede.cli import homes, wishes

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
    homes.erase(request, home, wishes=wished, gone=gone, dry_run=dry_run, as_json=json)


def countersign(
    receipts: Annotated[list[Path], typer.Argument(help="The receipts' files; replaced.")],
    key: Annotated[Path, typer.Option(help="Your private key.")],
    keys: Annotated[Path, typer.Option(help="Folder with the signers' public keys.")] = Path(
        "keys"
    ),
    server: Annotated[str, typer.Option(help="The name of the server's key.")] = "server",
    auditor: Auditors = None,
    json: Json = False,
) -> None:
    """Sign receipts too, as the leaver or an auditor.

    It is verified before and after; nothing is written unless it holds with your signature: you
    are the client that left, or your public key is among the auditors'. Its page is renewed.

    Example: secede countersign receipt.json --key auditor.key --keys keys
    """
    from secede.cli import trust

    for receipt in receipts:
        trust.countersign(receipt, key, keys, server=server, auditors=auditor or (), as_json=json)


group = typer.Typer(help="Set up a federation to erase from.", no_args_is_help=True)
group.callback()(lambda: None)
group.command("init")(federation_init)
