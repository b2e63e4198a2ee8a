"""The command `secede`: global options, and where each command is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer import core, main

from secede.cli.commands import (
    commitment,
    erase,
    federation,
    flower,
    keygen,
    ledger,
    lineage,
    lists,
    request,
    requests,
    run,
    verify,
)
from secede.cli.output import show_log

EXIT_CODES = """
Exit codes: 0 done; 1 other error; 2 bad config or arguments; 3 data missing or corrupt; 4 model
state corrupt or not finite; 5 run records damaged or in use; 6 disk full or not writable; 7 request
refused; 8 signature, ledger or receipt not valid; 9 returned state refused; 10 client silent;
11 erasure rolled back, the old model stays; 130 interrupted (the same command continues).
"""


class _Argument(core.TyperArgument):
    """Shows its help: typer 0.20 sets it too early for click 8.5, which clears it."""

    def __init__(self, *, help: str | None = None, **settings: Any) -> None:
        super().__init__(help=help, **settings)
        self._text = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return name and help."""
        name, text = super().get_help_record(ctx) or ("", "")
        return name, text if self.help else f"{self._text or ''}  {text}".strip()


main.TyperArgument = _Argument  # type: ignore[attr-defined]
core.HAS_RICH = False  # help is plain; for rich, typer would put a backslash before every [

PANELS: dict[str, tuple[typer.Typer | Callable[..., None], ...]] = {
    "Experiments": (run.demo, run.run, run.reproduce, run.report),
    "Lists": (lists.methods, lists.datasets, lists.scenarios, lists.executors, lists.presets),
    "Erasure": (
        federation.group,
        keygen.keygen,
        request.request,
        requests.group,
        erase.erase,
        flower.group,
    ),
    "Evidence": (
        verify.verify,
        verify.countersign,
        ledger.group,
        lineage.lineage,
        commitment.group,
    ),
}


def _name(command: typer.Typer | Callable[..., None]) -> str:
    return str(command.info.name) if isinstance(command, typer.Typer) else command.__name__


class _Panels(core.TyperGroup):
    """Lists the commands under headings."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each panel, with the first sentence of their help."""
        width = max(map(len, self.commands))
        for panel, commands in PANELS.items():
            shown = [(name, self.commands[name]) for name in map(_name, commands)]
            with formatter.section(panel):
                formatter.write_dl(
                    [
                        (name.ljust(width), command.get_short_help_str(formatter.width))
                        for name, command in shown
                    ]
                )


app = typer.Typer(
    name="secede",
    cls=_Panels,
    help="Erase one client from a trained federated model, and see how close it comes to "
    "retraining.\n\nExamples:\n\n  secede demo\n\n  secede run paper/mnist-backdoor-5 --seeds 3"
    "\n\n  secede run my.toml\n\n  secede report runs/",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from secede import __version__

        typer.echo(f"secede {__version__}")
        raise typer.Exit


@app.callback()
def global_options(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print debug lines too, and tracebacks.")
    ] = False,
    log_file: Annotated[
        Path | None, typer.Option(help="Append all log lines to this file, with time and source.")
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take the options that come before a command."""
    show_log(verbose=verbose, file=log_file)


for _command in (command for commands in PANELS.values() for command in commands):
    if isinstance(_command, typer.Typer):
        app.add_typer(_command)
    else:
        app.command()(_command)
