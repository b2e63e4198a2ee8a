"""A client's canaries, from where they lie: a home, an opened secret file, or a sealed one.

They are checked against the commitment that a receipt, a file or an option names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from secede.cli.commands.commitment import read_receipt
from secede.cli.shared import naming
from secede.errors import ConfigError, TrustError

if TYPE_CHECKING:
    from torch import nn

    from secede.canaries import Canaries, SealContext
    from secede.erasure import CommittedCanaries, Predicate
    from secede.state import State

_MAX_COMMITMENT_BYTES = 16 * 1024


@dataclass(frozen=True)
class Committed:
    """The root of a commitment, and who committed to it, as far as that is known."""

    root: str
    client: str | None = None
    federation: str | None = None
    receipt: Predicate | None = None


def _no_network(_: State) -> nn.Module:
    raise ConfigError("give --network: the model's network, such as small-cnn")


@dataclass(frozen=True)
class Source:
    """A client's canaries, checked against the commitment, and how their model is made."""

    canaries: Canaries
    said: Committed
    model: Callable[[State], nn.Module] = _no_network
    serving: Path | None = None
    document: CommittedCanaries | None = None  # the commitment as it was registered, if it is known


def from_home(folder: Path, client: str | None) -> Source:
    """Return the canaries of a simulated client, drawn again from the salt at its site."""
    from secede.erasure import CommittedCanaries, Home, ModelRegistry
    from secede.simulation.backend import client_canaries

    if client is None:
        raise ConfigError("give --client: the canaries are one client's")
    home = Home(folder)
    record = home.federation
    committed = record.client(client).scope.canaries
    if committed is None:
        raise ConfigError(f"{client!r} planted no canaries in {folder}")
    canaries, make = client_canaries(home, client)
    said = Committed(committed.commitment.root, client, record.name)
    _check(canaries, said.root)
    with ModelRegistry(home.registry, read_only=True) as registry:
        model = registry.serving(record.run)
    document = CommittedCanaries(federation=record.name, client=client, canaries=committed)
    serving = None if model is None else home.model_path(model.digest)
    return Source(canaries, said, make, serving, document)


def in_file(
    path: Path | None, root: str | None, client: str | None, federation: str | None
) -> Committed | None:
    """Return the commitment that a file or an option names."""
    from secede.erasure import CommittedCanaries, read_bounded

    if root is not None:
        if not re.fullmatch("[0-9a-f]{64}", root):
            raise ConfigError(f"--root is {root[:80]!r}, expected 64 hexadecimal digits")
        return Committed(root, client, federation)
    if path is None:
        return None
    with naming(path):
        document = CommittedCanaries.read(read_bounded(path, _MAX_COMMITMENT_BYTES))
    given = (("client", client, document.client), ("federation", federation, document.federation))
    for name, expected, found in given:
        if expected not in (None, found):
            raise TrustError(f"{path} is about {name} {found!r}, expected {expected!r}")
    return Committed(document.canaries.commitment.root, document.client, document.federation)


def in_receipt(
    path: Path, client: str | None, keys: Path, server: str, auditors: Sequence[Path] | None
) -> Committed:
    """Return the commitment that a valid receipt holds."""
    from secede.erasure import Signers

    receipt = read_receipt(path, client, Signers.load(keys, auditors or ()), server)
    about, canaries = receipt.request, receipt.scope.canaries
    if canaries is None:
        raise ConfigError(f"{path}: {about.client!r} planted no canaries")
    return Committed(canaries.commitment.root, about.client, about.federation, receipt)


def from_file(
    said: Committed | None,
    secret: Path | None,
    sealed: Path | None,
    key: Path | None,
    network: str | None,
    classes: int | None,
) -> Source:
    """Return canaries from an opened or a sealed file, checked against the commitment."""
    from secede.canaries import from_bytes

    if said is None:
        raise ConfigError(
            "give --receipt, --commitment or --root: canaries that nobody committed to show nothing"
        )
    if network is None:
        raise ConfigError("give --network: the model's network, such as small-cnn")
    if (secret is None) == (sealed is None):
        raise ConfigError("give --secret or --sealed: the file with the canaries")
    path = secret or sealed
    assert path is not None
    with naming(path):
        data = _secret_bytes(path) if sealed is None else _unsealed(path, key, said)
        canaries = from_bytes(data)
        _check(canaries, said.root)
    return Source(canaries, said, _network(network, canaries, classes))


def _secret_bytes(path: Path) -> bytes:
    from secede.canaries.secret_file import MAX_FILE_BYTES
    from secede.erasure import read_bounded

    return read_bounded(path, MAX_FILE_BYTES + 4096)


def _unsealed(path: Path, key: Path | None, said: Committed) -> bytes:
    from secede.canaries import load_seal_private_key, open_sealed

    if key is None:
        raise ConfigError("give --key: the auditor's private key that the canaries are sealed for")
    return open_sealed(_secret_bytes(path), load_seal_private_key(key), _context(said))


def _context(said: Committed) -> SealContext:
    from secede.canaries import SealContext

    if said.federation is None or said.client is None:
        raise ConfigError("give --federation and --client: sealed canaries are bound to both")
    return SealContext(federation=said.federation, client=said.client, commitment=said.root)


def sealed_for(data: bytes, auditor: Path, said: Committed) -> bytes:
    """Return a file of canaries, sealed for an auditor's public key."""
    from secede.canaries import load_seal_public_key, seal

    return seal(data, load_seal_public_key(auditor), _context(said))


def own_secret(path: Path | None, client: str, federation: str | None) -> Source:
    """Return the canaries in a client's own secret file."""
    from secede.canaries import canary_rows, from_bytes
    from secede.erasure import commit_to_samples

    if path is None:
        raise ConfigError("give --home, or the client's --secret file")
    with naming(path):
        canaries = from_bytes(_secret_bytes(path))
    root = commit_to_samples(canary_rows(canaries), canaries.secret).root
    return Source(canaries, Committed(root, client, federation))


def _check(canaries: Canaries, root: str) -> None:
    from secede.canaries import canary_rows
    from secede.erasure import check_canaries

    check_canaries(canary_rows(canaries), canaries.secret, root)


def _network(name: str, canaries: Canaries, classes: int | None) -> Callable[[State], nn.Module]:
    """Return what makes a model of a state, of a network for the canaries' inputs."""
    from secede import models
    from secede import state as states

    first = canaries.canaries[0]
    if classes is None and first.targets.is_floating_point():
        raise ConfigError("give --classes: the canaries' targets are no labels")
    count = classes or 1 + max(int(canary.targets.max()) for canary in canaries.canaries)

    def make(state: State) -> nn.Module:
        shape = tuple(first.inputs.shape[1:])
        network = models.build(name, shape=shape, classes=count, search=Path.cwd())
        states.load_into(network, state)
        return network

    return make
