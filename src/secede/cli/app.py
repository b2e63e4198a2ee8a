"""All commands and their options; each calls the library and prints what came back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from secede.cli import lists
from secede.experiments import presets
from secede.experiments.config import override

EXIT_CODES = """
Exit codes: 0 done; 1 other error; 2 bad config or arguments; 3 data missing or corrupt; 4 model
state corrupt or not finite; 5 run records damaged or in use; 6 disk full or not writable; 7 request
refused; 8 signature, ledger or receipt does not verify; 9 returned state refused; 130 interrupted
(run the same command again to go on).
"""

ledger_app = typer.Typer(help="Look after the ledger of erasures.", no_args_is_help=True)
app = typer.Typer(
    name="secede",
    help="Erase one client from a trained federated model, and see how close it comes to "
    "retraining.\n\nExamples:\n\n  secede demo\n\n  secede run paper/mnist-backdoor-5 --seeds 3"
    "\n\n  secede run my.toml\n\n  secede report runs/",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Seeds = Annotated[int, typer.Option(min=1, help="How many seeds: 0, 1, ... up to this many.")]
Rounds = Annotated[
    int | None, typer.Option(min=1, help="Rounds of training and retraining, not the preset's.")
]
Device = Annotated[str | None, typer.Option(help="auto (a GPU if there is one), cpu or cuda.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Use at most this many training and test images.")
]
Executor = Annotated[
    str | None, typer.Option(help="How clients are computed: auto, or see `secede executors`.")
]
Precision = Annotated[
    str | None,
    typer.Option(help="float32, tf32 (GPU) or bf16; results are published in float32."),
]
Lanes = Annotated[
    int | None,
    typer.Option(min=1, help="Seeds that run side by side; if absent, what the device bears."),
]
Out = Annotated[Path, typer.Option(help="Folder that holds the runs' records.")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="A method to run instead of the preset's; may be given several times, the first is "
        "judged. `all`: every one that can work there. See `secede methods`.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


def _changes(
    method: list[str] | None,
    rounds: int | None,
    device: str | None,
    executor: str | None,
    precision: str | None,
    limit: int | None,
) -> dict[str, int | str | list[str] | None]:
    """Return what the options change in a config, by its keys."""
    return {
        "methods": method,
        "training.rounds": rounds,
        "device": device,
        "executor": executor,
        "precision": precision,
        "limit": limit,
    }


def _version(wanted: bool) -> None:
    if wanted:
        from secede import __version__

        typer.echo(f"secede {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hold the options that stand before a command."""


@app.command()
def demo(
    seeds: Seeds = 1, device: Device = None, out: Out = Path("runs"), json: Json = False
) -> None:
    """Train, erase, compare with retraining; embedded data.

    It takes about ninety seconds on two idle cores and needs no network. Five clients train on
    8,000 digits; one of them planted a backdoor and leaves. The demo erases it, retrains without it
    for comparison, and writes an HTML page.

    Example: secede demo
    """
    from secede.cli.experiment import run_one

    run_one(override(presets.load("demo"), {"device": device}), seeds, out, as_json=json)


@app.command()
def run(
    experiment: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="See `secede presets`.")
    ],
    method: Methods = None,
    seeds: Seeds = 1,
    rounds: Rounds = None,
    device: Device = None,
    executor: Executor = None,
    precision: Precision = None,
    limit: Limit = None,
    lanes: Lanes = None,
    out: Out = Path("runs"),
    json: Json = False,
) -> None:
    """Run one experiment: a preset or your own TOML file.

    A run that was killed goes on where it was; one that is finished is recognised and not computed
    again. Records, figures and the HTML page lie in the run's folder below --out.

    Example: secede run paper/mnist-backdoor-5 --seeds 3

    Another: secede run demo --method second-choice --method weight-negation
    """
    from secede.cli.experiment import run_one

    changes = _changes(method, rounds, device, executor, precision, limit)
    search = Path(experiment).resolve().parent if experiment.endswith(".toml") else None
    config = override(presets.load(experiment), changes)
    run_one(config, seeds, out, search=search, lanes=lanes, as_json=json)


@app.command()
def reproduce(
    cells: Annotated[
        list[str] | None,
        typer.Option(
            "--cells", help="Cells of the paper, such as mnist-backdoor-5; all if absent."
        ),
    ] = None,
    method: Methods = None,
    seeds: Seeds = 5,
    rounds: Rounds = None,
    device: Device = None,
    executor: Executor = None,
    precision: Precision = None,
    limit: Limit = None,
    lanes: Lanes = None,
    out: Out = Path("runs"),
    report: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("report"),
    json: Json = False,
) -> None:
    """Run the whole paper and draw its figures.

    The report puts the numbers that the paper's text states beside the measured ones.
    Needs MNIST, EMNIST (47 classes) and CIFAR-10: see `secede datasets`. Hours on two CPU cores,
    minutes on a GPU; it can be stopped and started again.

    Example: secede reproduce --cells mnist-backdoor-5 --cells mnist-flipped-10 --seeds 3
    """
    from secede.cli.experiment import run_many

    changes = _changes(method, rounds, device, executor, precision, limit)
    run_many(lists.paper_cells(cells), changes, seeds, out, report, lanes=lanes, as_json=json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[Path, typer.Option(help="Folder for page, figures and tables.")] = Path(
        "report"
    ),
    json: Json = False,
) -> None:
    """Turn records into an HTML page, figures and tables.

    The page is self-contained; figures are SVG and PNG, tables CSV.

    Example: secede report runs/ --out report
    """
    from secede.cli.experiment import write_pages

    write_pages(runs, out, as_json=json)


@app.command()
def methods(json: Json = False) -> None:
    """List the unlearning methods and what each needs.

    Example: secede methods
    """
    lists.methods(as_json=json)


@app.command()
def datasets(json: Json = False) -> None:
    """List the data sets, their sizes and where they come from.

    Example: secede datasets
    """
    lists.datasets(as_json=json)


@app.command()
def scenarios(json: Json = False) -> None:
    """List what a leaver's data can be like, and the probes.

    Example: secede scenarios
    """
    lists.scenarios(as_json=json)


@app.command()
def executors(json: Json = False) -> None:
    """List the ways to compute a round's clients.

    `auto` picks one by device, network and number of clients; the records say which.

    Example: secede executors
    """
    lists.executors(as_json=json)


@app.command(name="presets")
def list_presets(json: Json = False) -> None:
    """List the ready experiments for `secede run`.

    Example: secede presets
    """
    lists.presets(as_json=json)


@app.command()
def keygen(
    name: Annotated[str, typer.Argument(help="Whose keys: a client's name, or `server`.")],
    folder: Annotated[Path, typer.Option(help="Where NAME.key and NAME.pub go.")] = Path("keys"),
    json: Json = False,
) -> None:
    """Make a pair of Ed25519 keys.

    NAME.key is secret and readable by its owner only (0600); NAME.pub is for everybody. Files that
    are there are not replaced.

    Example: secede keygen site-3
    """
    from secede.cli import requests as bodies

    bodies.keygen(name, folder, as_json=json)


@app.command()
def request(
    client: Annotated[str, typer.Argument(help="Who leaves, by its name in the federation.")],
    federation: Annotated[str, typer.Option(help="The federation's name.")],
    model: Annotated[str, typer.Option(help="The model's digest, or its safetensors file.")],
    key: Annotated[Path, typer.Option(help="The client's private key.")],
    trigger: Annotated[
        str,
        typer.Option(
            help="consent-withdrawn, objection, unlawful, contract-ended or other.",
        ),
    ] = "consent-withdrawn",
    days: Annotated[int, typer.Option(min=1, max=31, help="Days until it expires.")] = 7,
    out: Annotated[Path, typer.Option(help="The file that is sent to the server.")] = Path(
        "request.json"
    ),
    json: Json = False,
) -> None:
    """Sign a request to be erased.

    It names the client, the model and a nonce, and no person. The server accepts it once.

    Example: secede request site-3 --federation north --model m.safetensors --key keys/site-3.key
    """
    from secede.cli import requests as bodies

    bodies.request(
        federation=federation,
        client=client,
        trigger=trigger,
        model=model,
        key=key,
        out=out,
        now=datetime.now(UTC),
        days=days,
        as_json=json,
    )


@app.command()
def requests(
    journal: Annotated[Path, typer.Argument(help="The server's journal of requests.")],
    json: Json = False,
) -> None:
    """List requests to be erased, with the days left.

    A request is due a month after its receipt (GDPR Art. 12), or later where it was extended.

    Example: secede requests journal.sqlite
    """
    from secede.cli import requests as bodies

    bodies.requests(journal, now=datetime.now(UTC), as_json=json)


@app.command()
def verify(
    receipt: Annotated[Path, typer.Argument(help="The receipt's file.")],
    keys: Annotated[Path, typer.Option(help="Folder with the signers' public keys.")] = Path(
        "keys"
    ),
    model: Annotated[
        Path | None, typer.Option(help="Compare the erased model's safetensors file.")
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="Compare the ledger.")] = None,
    server: Annotated[str, typer.Option(help="The name of the server's key.")] = "server",
    countersignatures: Annotated[
        int, typer.Option(min=0, help="How many besides the server must have signed.")
    ] = 0,
    page: Annotated[bool, typer.Option("--page", help="Write its HTML page beside it.")] = False,
    json: Json = False,
) -> None:
    """Check a receipt of an erasure, offline.

    Public keys are all it takes. Every altered byte is found.

    Example: secede verify receipt.json --keys keys --ledger ledger.sqlite
    """
    from secede.cli import trust

    trust.verify(
        receipt,
        keys,
        model=model,
        ledger=ledger,
        server=server,
        countersignatures=countersignatures,
        page=page,
        as_json=json,
    )


@app.command()
def lineage(
    registry: Annotated[Path, typer.Argument(help="The registry of models.")],
    client: Annotated[
        str | None, typer.Option(help="Show the models that still carry this client.")
    ] = None,
    json: Json = False,
) -> None:
    """List registered models, or those that carry a client.

    Example: secede lineage models.sqlite --client site-3
    """
    from secede.cli import trust

    trust.lineage(registry, client, as_json=json)


@ledger_app.callback()
def ledger_options() -> None:
    """Look after the ledger of erasures."""


@ledger_app.command("verify")
def ledger_verify(
    ledger: Annotated[Path, typer.Argument(help="The ledger, or its export in JSON lines.")],
    expected: Annotated[
        str | None, typer.Option(help="A row that it must hold, as NUMBER:HASH.")
    ] = None,
    json: Json = False,
) -> None:
    """Find any altered, removed or reordered row.

    A cut tail shows only beside a known head: give a receipt's as --expected.

    Example: secede ledger verify ledger.sqlite
    """
    from secede.cli import trust

    trust.ledger_verify(ledger, expected=expected, as_json=json)


app.add_typer(ledger_app, name="ledger")
