"""`secede keygen`: make a pair of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secede.cli.shared import Json, print_json


def keygen(
    name: Annotated[str, typer.Argument(help="Owner of the keys: a client's name, or `server`.")],
    folder: Annotated[Path, typer.Option(help="Folder for NAME.key and NAME.pub.")] = Path("keys"),
    json: Json = False,
) -> None:
    """Make a pair of Ed25519 keys.

    NAME.key is secret, and only its owner can read it (0600). NAME.pub is for everybody. Existing
    files are not replaced.

    Example: secede keygen site-3
    """
    from secede.erasure import generate_key_pair, load_public_key

    private, public = generate_key_pair(folder, name)
    identity = load_public_key(public).keyid
    if json:
        print_json({"private": str(private), "public": str(public), "key_id": identity})
        return
    print(f"{private}  keep it secret; only you can read it (0600)")
    print(f"{public}  give it to the federation's server")
    print(f"key id {identity}")
