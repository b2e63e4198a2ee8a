"""`secede client`: what a client's owner releases, and reads of what its client was asked."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from secede.cli.shared import Json, print_json
from secede.errors import ConfigError
from secede.text import plural, short_digest

group = typer.Typer(
    suggest_commands=False,  # click does it too
    name="client",
    help="Release a client's local step, and read its log.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path, typer.Argument(help="Folder of the client's kept updates, or the one around it.")
]


@group.callback()
def check_installed() -> None:
    """Say what to install where Flower is missing."""
    try:
        import secede.flower  # noqa: F401
    except ImportError as error:
        raise ConfigError(str(error)) from error


@group.command()
def release(
    folder: Folder,
    request: Annotated[str | None, typer.Option(help="Digest of the request to release.")] = None,
    federation: Annotated[
        str | None, typer.Option(help="Federation whose requests are all released.")
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="Last day on which the release is valid."),
    ] = None,
    json: Json = False,
) -> None:
    """Let a client take its local step.

    Without a request that the client's own key signed, a client takes no step unless its owner
    releases it here, at the site. Give --request or --federation.

    Example: secede client release sites/site-2 --federation north
    """
    from pydantic import ValidationError

    from secede.erasure import describe_errors, format_time
    from secede.flower.client import consent

    if (request is None) == (federation is None):
        raise ConfigError("give --request or --federation: the release must say what it is for")
    last = None if until is None else until.replace(hour=23, minute=59, second=59).astimezone()
    try:
        new = consent.Release(
            request=request,
            federation=federation,
            until=None if last is None else format_time(last),
        )
    except ValidationError as error:
        raise ConfigError(f"the release is not valid: {describe_errors(error)}") from None
    path = _client_folder(folder)
    consent.release(path, new)
    if json:
        print_json({"folder": str(path), **new.model_dump()})
        return
    what = f"request {short_digest(request)}" if request else f"requests of {federation!r}"
    print(f"{path}: a step may be taken for {what}{f' until {new.until}' if new.until else ''}")


@group.command()
def revoke(folder: Folder, json: Json = False) -> None:
    """Take back what was released.

    Example: secede client revoke sites/site-2
    """
    from secede.flower.client import consent

    path = _client_folder(folder)
    count = consent.revoke(path)
    if json:
        print_json({"folder": str(path), "revoked": count})
        return
    print(f"{path}: {plural(count, 'release')} taken back")


@group.command()
def log(folder: Folder, json: Json = False) -> None:
    """Show what a client was asked, and what it refused.

    Example: secede client log sites/site-2
    """
    from secede.flower.client.question_log import QuestionLog

    questions = QuestionLog(_client_folder(folder)).all()
    if json:
        print_json({"questions": [question.model_dump() for question in questions]})
        return
    for each in questions:
        what = f"{each.task or 'question'} {each.method}".strip()
        about = [
            f"{name} {short_digest(value)}"
            for name in ("model", "request", "home")
            if (value := getattr(each, name))
        ]
        said = f"{each.outcome}: {each.reason}" if each.reason else each.outcome
        print("  ".join((each.at, what, *about, said)))
    if not questions:
        print("nothing was asked yet")


def _client_folder(folder: Path) -> Path:
    """Return the one folder of a client's updates at or below `folder`."""
    marks = ("index.json", "questions.jsonl", "released.json")
    if any((folder / mark).exists() for mark in marks):
        return folder
    below = sorted({path.parent for mark in marks for path in folder.glob(f"*/{mark}")})
    if len(below) == 1:
        return below[0]
    names = f": name one of {', '.join(path.name for path in below)}" if below else ""
    raise ConfigError(
        f"{folder} holds {plural(len(below), 'client')}, expected the folder in which one client "
        f"keeps its updates{names}"
    )
