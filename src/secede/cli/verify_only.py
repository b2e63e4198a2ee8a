"""The command `secede-verify`: `secede verify` on its own, for who installs no torch."""

from __future__ import annotations

import typer

from secede.cli import run
from secede.cli.commands.verify import verify


def main() -> None:
    """Verify receipts, offline, with public keys alone."""
    app = typer.Typer(
        name="secede-verify",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command()(verify)
    run(app, "secede-verify")
