"""What commands share: options and arguments, and how results and errors are printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from secede.errors import TrustError
from secede.text import is_visible

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

# Of experiments

Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, and so on.")]
Rounds = Annotated[
    int | None,
    typer.Option(min=1, help="Rounds of training and retraining, instead of the preset's."),
]
Device = Annotated[str | None, typer.Option(help="auto (a GPU if there is one), cpu or cuda.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Use at most this many training and test images.")
]
Executor = Annotated[
    str | None, typer.Option(help="How a round's clients are computed; see `secede executors`.")
]
Precision = Annotated[
    str | None,
    typer.Option(help="float32, tf32 (GPU) or bf16. Published results use float32."),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Seeds to run at once.", show_default="1 on a CPU, 8 on a GPU"),
]
Out = Annotated[Path, typer.Option(help="Folder for the records of runs.")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="Run this method instead of the preset's; `all` for every method that can work. "
        "Repeatable: the verdict is about the first. See `secede methods`.",
    ),
]

# Of erasures

HomeFolder = Annotated[Path, typer.Option("--home", help="Home folder of the federation.")]
_TRIGGER = typer.Option(
    help="Reason, for the receipt: consent-withdrawn, objection, unlawful, contract-ended or other."
)
Trigger = Annotated[str, _TRIGGER]
OptionalTrigger = Annotated[str | None, _TRIGGER]

# Of verification

Keys = Annotated[Path, typer.Option(help="Folder with the signers' public keys.")]
ServerName = Annotated[str, typer.Option(help="Name of the server's key.")]
Auditors = Annotated[
    list[Path] | None,
    typer.Option("--auditor", help="Public key of an auditor, besides KEYS/auditors. Repeatable."),
]


class _DefaultCommandGroup(TyperGroup):
    """A group that takes what begins with none of its commands as its default command."""

    default = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command first, unless a command or nothing but help is asked for."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def group_with_default(name: str) -> type[TyperGroup]:
    """Return the class of a group whose command `name` may be left out."""
    return type("Group", (_DefaultCommandGroup,), {"default": name})


def print_json(value: object) -> None:
    """Print a result for scripts; what a terminal may not show is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    print("".join(c if is_visible(c) or c == "\n" else json.dumps(c)[1:-1] for c in text))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error about its content."""
    try:
        yield
    except TrustError as error:
        text = str(error)
        raise TrustError(text if text.startswith(str(path)) else f"{path}: {text}") from error
