"""`secede keygen` and `secede request`: make a key, sign a request with it, recognise its file."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from secede.cli.commands.verify import model_digest
from secede.cli.shared import Json, Trigger, print_json
from secede.errors import ConfigError, RequestError

logger = logging.getLogger(__name__)


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


def request(
    client: Annotated[str, typer.Argument(help="Who leaves: the client's name.")],
    key: Annotated[Path, typer.Option(help="Private key of the client.")],
    trigger: Trigger,
    home: Annotated[
        Path | None, typer.Option(help="Home folder to take federation and model from.")
    ] = None,
    federation: Annotated[str | None, typer.Option(help="Name of the federation.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model: its digest, or its safetensors file.")
    ] = None,
    server_key: Annotated[
        Path | None,
        typer.Option(help="Public key of the server, the only one the request then counts for."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=31, help="Days until the request expires.")] = 7,
    out: Annotated[Path, typer.Option(help="File to write, for the server.")] = Path(
        "request.json"
    ),
    json: Json = False,
) -> None:
    """Sign a request for erasure.

    It names the client, the model and a nonce, and no person. The server accepts it once. Give
    --home, or --federation, --model and --server-key.

    Example: secede request site-3 --home home --key keys/site-3.key --trigger contract-ended

    Another: secede request site-3 --federation north --model m.safetensors --server-key server.pub
    --key site-3.key --trigger objection
    """
    from secede import files
    from secede.erasure import load_private_key, load_public_key, new_request, sign_request

    if home is not None:
        federation, model = _from_home(home, client, key, federation, model)
        server_key = server_key or home / "keys" / "server.pub"
    if federation is None or model is None:
        raise ConfigError("give --federation and --model, or --home for both")
    if server_key is None:
        logger.warning(
            "the request names no server: it counts in every federation of this name with your key "
            "and this model; give --server-key"
        )
    document = new_request(
        federation=federation,
        client=client,
        trigger=trigger,
        model=_digest(model),
        server=None if server_key is None else load_public_key(server_key).keyid,
        now=datetime.now(UTC),
        lifetime=timedelta(days=days),
    )
    try:
        files.create(out, sign_request(document, load_private_key(key)), 0o644)
    except FileExistsError:
        raise ConfigError(f"{out} exists and is not replaced: name another file") from None
    if json:
        print_json({"file": str(out), "request": document.digest(), "expires": document.expires})
        return
    print(f"{out}  {client} asks {federation} for erasure ({trigger})")
    print(f"request {document.digest()}")
    print(f"send it before {document.expires}")


def _from_home(
    folder: Path, client: str, key: Path, federation: str | None, model: str | None
) -> tuple[str, str]:
    """Return federation and model, those of a home unless they are given.

    Raise if the home would refuse a request of `client` signed with `key`.
    """
    from secede.erasure import Home, ModelRegistry, load_private_key

    home = Home(folder)
    record = home.federation
    with ModelRegistry(home.registry, read_only=True) as registry:
        serving, erased = registry.serving(record.run), registry.erased_clients()
    if model is None and serving is None:
        raise ConfigError(f"no model serves in {folder}: give --model")
    record.client(client)
    if client in erased:
        raise RequestError(f"{client!r} was erased already: there is nothing to ask for")
    ring, identity = home.keyring(), load_private_key(key).public_key.keyid
    if client in ring and ring[client].keyid != identity:
        owners = [f"{name}'s key" for name, public in ring.items() if public.keyid == identity]
        raise ConfigError(
            f"{key} is {owners[0] if owners else 'a key that nobody has here'}, expected "
            f"{client}'s, whose public key is {home.keys / f'{client}.pub'}"
        )
    return federation or record.name, model or (serving.digest if serving else "")


def _digest(model: str) -> str:
    """Return the digest of a model that is given as one, or as a safetensors file."""
    if re.fullmatch("[0-9a-f]{64}", model):
        return model
    if not Path(model).exists():
        raise ConfigError(
            f"no model {model!r}: expected a digest of 64 hexadecimal digits or a safetensors file"
        )
    return model_digest(Path(model))
