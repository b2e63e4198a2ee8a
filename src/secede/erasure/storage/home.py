"""A federation's home folder at the server: its members, and where everything is stored.

federation.json   name, run, clients and the scope of each
journal.sqlite    requests                       ledger.sqlite   hash-chained rows
models.sqlite     registry of models             models/         states in service, by digest
server.key        signs receipts                 operator.key    signs requests for clients
keys/             public keys, for everybody     plans/          plans, by digest
work/             states of erasures in progress receipts/       receipts and their pages
sketches/         fingerprints of old models     acknowledgements/  what clients get back
erasing.lock      the process that works here

The folder is its owner's alone (0700), and so is all that is written into it (0600).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from secede import files
from secede.erasure.canonical_json import digest, load_document, save_document
from secede.erasure.documents import Plan, Scope
from secede.erasure.signing.keys import (
    SERVER,
    Keyring,
    PrivateKey,
    PublicKey,
    Signers,
    ensure_key_pair,
    load_private_key,
    load_public_key,
)
from secede.erasure.types import Count, Digest, Document, Name, Text
from secede.errors import ConfigError, RecordError, did_you_mean
from secede.text import list_first

RESTORE = "restore the whole home as it was at one time (docs/erasing.md)"
_MAX_FEDERATION_BYTES = 64 << 20
_MAX_PLAN_BYTES = 16 << 20  # a plan for as many clients as a federation may have takes half of it


class Client(Document):
    """A client: its name, its number in the engine, and the scope of its training."""

    name: Name
    number: Count
    scope: Scope


class Federation(Document):
    """The name of a federation, its clients, and the run that trained its first model."""

    version: Literal[1] = 1
    name: Name
    run: Name
    clients: Annotated[tuple[Client, ...], Field(min_length=2, max_length=100_000)]
    recipe: Digest  # of what the engine is built from
    controller: Text | None = None  # who is responsible for the data, for the receipt
    contact: Text | None = None  # whom to ask, such as an office's address

    @model_validator(mode="after")
    def _each_once(self) -> Federation:
        for key in ("name", "number"):
            if len({getattr(client, key) for client in self.clients}) < len(self.clients):
                raise ValueError(f"two clients have the same {key}")
        return self

    def digest(self) -> str:
        """Return the digest of its canonical JSON."""
        return digest(self.model_dump(mode="json"))

    def client(self, name: str) -> Client:
        """Return a client by its name."""
        clients = {client.name: client for client in self.clients}
        if name not in clients:
            raise ConfigError(
                f"no client {name!r} in federation {self.name!r}: {did_you_mean(name, clients)}"
                f"expected one of {list_first(sorted(clients), 20)}"
            )
        return clients[name]


class Home:
    """The folder and the paths in it; its databases are opened where they are needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal, self.ledger = path / "journal.sqlite", path / "ledger.sqlite"
        self.registry, self.keys = path / "models.sqlite", path / "keys"
        self.receipts = path / "receipts"

    @property
    def federation(self) -> Federation:
        """The federation and its clients."""
        path = self.path / "federation.json"
        if not path.is_file():
            raise ConfigError(
                f"{self.path} is no federation's home: expected a folder that "
                "`secede federation init` made"
            )
        return load_document(Federation, path, _MAX_FEDERATION_BYTES)

    def save_federation(self, federation: Federation) -> None:
        """Write the federation's clients; that makes the folder a home, so it comes last."""
        save_document(self.path / "federation.json", federation)

    def check_journal(self) -> None:
        """Raise if the journal is missing: a new one would know of no request that was accepted."""
        if not self.journal.is_file():
            raise RecordError(f"{self.journal} is missing: {RESTORE}")

    def keyring(self) -> Keyring:
        """Return the public keys of server and clients."""
        return Keyring.load(self.keys)

    def key_ids(self) -> dict[str, str]:
        """Return the ids of the public keys of server and clients."""
        return {name: key.keyid for name, key in self.keyring().items()}

    def client_keys(self) -> dict[str, PublicKey]:
        """Return the public keys of the federation's clients, and of nobody else."""
        names = {client.name for client in self.federation.clients}
        return {name: key for name, key in self.keyring().items() if name in names}

    @property
    def server_id(self) -> str:
        """The id of the server's public key."""
        return load_public_key(self.keys / f"{SERVER}.pub").keyid

    def signers(self) -> Signers:
        """Return the keys that may sign receipts: auditors' are in keys/auditors."""
        return Signers.load(self.keys)

    def server_key(self) -> PrivateKey:
        """Return the key that signs receipts."""
        path, misplaced = self.path / f"{SERVER}.key", self.keys / f"{SERVER}.key"
        if misplaced.exists() and not path.exists():
            raise ConfigError(
                f"{misplaced} is private and lies among public keys: move it to {path}; if "
                f"{self.keys} was handed to others, they have the key"
            )
        return load_private_key(path)

    def make_server_key(self) -> None:
        """Make the server's key pair unless it is there; a private key is never replaced."""
        ensure_key_pair(self.path, SERVER, public_folder=self.keys)

    def operator_key(self) -> PrivateKey:
        """Return the key that signs requests for clients without one; it signs no receipt."""
        return load_private_key(ensure_key_pair(self.path, "operator")[0])

    def model_path(self, model: str) -> Path:
        """Return the file of a model that was put into service."""
        return self.path / "models" / f"{model}.safetensors"

    def sketches(self, what: Literal["model", "update"]) -> Path:
        """Return the folder with the fingerprints of models, or of erased clients' updates."""
        return self.path / "sketches" / ("" if what == "model" else "updates")

    def work_folder(self, number: int) -> Path:
        """Return the folder for the states of request `number`, deleted when it ends."""
        return self.path / "work" / str(number)

    def receipt_path(self, request: str) -> Path:
        """Return the file of the receipt for a request, by the request's digest."""
        return self.receipts / f"{request}.json"

    def acknowledgement_path(self, request: str) -> Path:
        """Return the file of the acknowledgement of a request, by the request's digest."""
        return self.path / "acknowledgements" / f"{request}.json"

    def save_plan(self, plan: Plan) -> str:
        """Write a plan and return its digest."""
        content = plan.content() + b"\n"
        if len(content) > _MAX_PLAN_BYTES:
            raise ConfigError(
                f"the plan takes {len(content):,} bytes, expected at most {_MAX_PLAN_BYTES:,}"
            )
        files.write_bytes(self._plan_path(plan.digest()), content)
        return plan.digest()

    def load_plan(self, name: str) -> Plan:
        """Return the plan with this digest."""
        path = self._plan_path(name)
        plan = load_document(Plan, path, _MAX_PLAN_BYTES)
        if plan.digest() != name:
            raise RecordError(
                f"{path}: its content does not have the digest of its name: restore it "
                "from a backup"
            )
        return plan

    def _plan_path(self, name: str) -> Path:
        return self.path / "plans" / f"{name}.json"
