"""The command `secede`: global options, the log that they set up, and where each command is."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer import core, main

from secede import __version__, files, logs
from secede.cli.commands import (
    canaries,
    client,
    commitment,
    erase,
    federation,
    flower,
    ledger,
    lists,
    request,
    requests,
    run,
    verify,
)
from secede.cli.commands.audit.command import audit
from secede.cli.commands.audit.rehearse import rehearse
from secede.errors import StorageError
from secede.text import printable_lines

logger = logging.getLogger(__name__)

EXIT_CODES = """
Exit codes: 0 done; 1 other error; 2 bad config or arguments; 3 data missing or corrupt; 4 model
state corrupt or not finite; 5 run records damaged or in use; 6 disk full or not writable; 7 request
refused; 8 signature, ledger or receipt not valid; 9 returned state refused; 10 client silent;
11 erasure rolled back, the old model stays; 12 retraining lost accuracy, decide with --accept-loss;
130 interrupted (the same command continues).
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
        request.keygen,
        request.request,
        requests.group,
        rehearse,
        erase.erase,
        flower.group,
        client.group,
    ),
    "Evidence": (
        audit,
        verify.verify,
        verify.countersign,
        ledger.group,
        ledger.lineage,
        commitment.group,
        canaries.group,
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
    suggest_commands=False,  # click does it too
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
        typer.echo(f"secede {__version__}")
        raise typer.Exit


class _Format(logging.Formatter):
    """INFO lines as they are, others with their level."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, or more with a traceback."""
        line = super().format(record)
        if record.levelno >= logging.WARNING:
            return f"{record.levelname.lower()}: {line}"
        return f"debug: {record.name}: {line}" if record.levelno < logging.INFO else line


class _Terminal(logs.LineHandler):
    """The one handler that prints on standard error."""

    def __init__(self, level: int) -> None:
        super().__init__(_print, level)
        self.setFormatter(_Format())


class _LogFile(logging.FileHandler):
    """The one handler that writes a file."""

    def __init__(self, path: Path) -> None:
        try:
            with files.private():
                files.make_folder(path.absolute().parent)
            path.touch(0o600)
            super().__init__(path, encoding="utf-8")
        except OSError as error:
            raise StorageError(f"cannot write the log file {path}: {error.strerror}") from error
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self.setLevel(logging.DEBUG)


def show_log(*, verbose: bool = False, file: Path | None = None) -> None:
    """Print log lines on standard error from now on, and write all of them to `file`."""
    for handler in list(logs.LOGGER.handlers):
        if isinstance(handler, _Terminal | _LogFile):
            logs.LOGGER.removeHandler(handler)
            handler.close()
    logs.add(_Terminal(logging.DEBUG if verbose else logging.INFO))
    if file is not None:
        logs.add(_LogFile(file))
    logger.debug("secede %s: %s", __version__, " ".join(sys.argv[1:]))


def _print(line: str) -> None:
    # In one piece: print() would write the line's end on its own, after another thread's line.
    sys.stderr.write(printable_lines(line) + "\n")
    sys.stderr.flush()


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
