"""A federation's home folder at the server: who takes part, and where everything is kept.

federation.json                          name, run, clients and what each put in
journal.sqlite ledger.sqlite models.sqlite   requests, ledger, registry of models
server.key  signs receipts; nobody else's           operator.key  signs requests for clients
keys/       the public keys of all who sign, for everybody
models/     states in service, by digest         plans/     plans, by digest
work/       states of erasures in progress       receipts/  receipts and their pages
sketches/   what old models are recognised by
acknowledgements/  what clients get for their requests

The folder is its owner's alone (0700), and so is all that is written into it (0600).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from secede import files
from secede.erasure.documents.plan import Plan
from secede.erasure.documents.receipt import Scope
from secede.erasure.signing.keys import (
    SERVER,
    Keyring,
    PrivateKey,
    PublicKey,
    Signers,
    ensure_key_pair,
    load_private_key,
)
from secede.erasure.storage.json_files import load_document, save_document
from secede.erasure.types import Count, Digest, Document, Name
from secede.errors import ConfigError, RecordError, did_you_mean

_MAX_FEDERATION_BYTES = 64 << 20
_MAX_PLAN_BYTES = 16 << 20  # a plan for as many clients as a federation may have takes half of it


class Client(Document):
    """A client: its name, its number in the engine, and what it put in while training."""

    name: Name
    number: Count
    scope: Scope


class Federation(Document):
    """Who takes part, under which name, and the run that trained the first model."""

    version: Literal[1] = 1
    name: Name
    run: Name
    clients: Annotated[tuple[Client, ...], Field(min_length=2, max_length=100_000)]
    recipe: Digest  # of what the engine is put up from

    @model_validator(mode="after")
    def _each_once(self) -> Federation:
        for key in ("name", "number"):
            if len({getattr(client, key) for client in self.clients}) < len(self.clients):
                raise ValueError(f"two clients have the same {key}")
        return self

    def client(self, name: str) -> Client:
        """Return a client by its name."""
        found = {client.name: client for client in self.clients}
        if name not in found:
            raise ConfigError(
                f"no client {name!r} in federation {self.name!r}: {did_you_mean(name, found)}"
                f"expected one of {', '.join(sorted(found)[:20])}"
            )
        return found[name]


class Home:
    """The folder; its databases are opened by whoever needs them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal, self.ledger = path / "journal.sqlite", path / "ledger.sqlite"
        self.registry, self.keys = path / "models.sqlite", path / "keys"
        self.receipts = path / "receipts"

    @property
    def federation(self) -> Federation:
        """Who takes part."""
        path = self.path / "federation.json"
        if not path.is_file():
            raise ConfigError(
                f"{self.path} is no federation's home: expected a folder that "
                "`secede federation init` made"
            )
        return load_document(Federation, path, _MAX_FEDERATION_BYTES)

    def save_federation(self, federation: Federation) -> None:
        """Write down who takes part; it makes the folder a home, so it comes last."""
        save_document(self.path / "federation.json", federation)

    def check_journal(self) -> None:
        """Raise if the journal is missing: a new one would know of no request that was accepted."""
        if not self.journal.is_file():
            raise RecordError(
                f"{self.journal} is missing: restore the whole home as it was at one time "
                "(docs/erasing.md)"
            )

    def keyring(self) -> Keyring:
        """Return the public keys of server and clients."""
        return Keyring.load(self.keys)

    def client_keys(self) -> dict[str, PublicKey]:
        """Return the public keys of those who take part, and of nobody else."""
        names = {client.name for client in self.federation.clients}
        return {name: key for name, key in self.keyring().items() if name in names}

    def signers(self) -> Signers:
        """Return whose signatures count on a receipt: auditors' keys lie in keys/auditors."""
        return Signers.load(self.keys)

    def server_key(self) -> PrivateKey:
        """Return the key that signs receipts."""
        path, among = self._server_key, self.keys / f"{SERVER}.key"
        if among.exists() and not path.exists():
            raise ConfigError(
                f"{among} is private and lies among public keys: move it to {path}; if {self.keys} "
                "was handed to others, the key is known to them"
            )
        return load_private_key(path)

    def make_server_key(self) -> None:
        """Make the server's pair of keys, unless it is there; a private key is never replaced."""
        ensure_key_pair(self.path, SERVER, public_folder=self.keys)

    def operator_key(self) -> PrivateKey:
        """Return the key that signs requests for clients that have none; nobody's on a receipt."""
        return load_private_key(ensure_key_pair(self.path, "operator")[0])

    @property
    def _server_key(self) -> Path:
        return self.path / f"{SERVER}.key"

    def model_path(self, digest: str) -> Path:
        """Return where a model that was put into service lies."""
        return self.path / "models" / f"{digest}.safetensors"

    def work_folder(self, number: int) -> Path:
        """Return the folder for the states of request `number`, which go when it ends."""
        return self.path / "work" / str(number)

    def receipt_path(self, request: str) -> Path:
        """Return where the receipt for a request lies, by the request's digest."""
        return self.receipts / f"{request[:16]}.json"

    def acknowledgement_path(self, request: str) -> Path:
        """Return where the server's acknowledgement of a request lies, by the request's digest."""
        return self.path / "acknowledgements" / f"{request[:16]}.json"

    def save_plan(self, plan: Plan) -> str:
        """Write a plan down and return its digest."""
        content = plan.content() + b"\n"
        if len(content) > _MAX_PLAN_BYTES:
            raise ConfigError(
                f"the plan takes {len(content):,} bytes, expected at most {_MAX_PLAN_BYTES:,}"
            )
        files.write_bytes(self._plan_path(plan.digest()), content)
        return plan.digest()

    def load_plan(self, digest: str) -> Plan:
        """Return a plan that was written down."""
        path = self._plan_path(digest)
        plan = load_document(Plan, path, _MAX_PLAN_BYTES)
        if plan.digest() != digest:
            raise RecordError(f"{path}: not the plan that was written down")
        return plan

    def remove_parts(self) -> None:
        """Remove what a kill left half written; whoever calls holds the home."""
        files.remove_parts(self.path)

    def _plan_path(self, digest: str) -> Path:
        return self.path / "plans" / f"{digest}.json"
