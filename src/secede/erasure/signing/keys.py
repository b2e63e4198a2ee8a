"""Ed25519 keys as PEM files: NAME.key, which only its owner may read, and NAME.pub for everybody.

A private key is checked on the opened file, so that a symbolic link or a swapped file cannot slip
past the check. No text of an error holds anything of a key.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.signer import (  # type: ignore[attr-defined]  # not marked as exported
    CryptoSigner,
    SSlibKey,
)

from secede import files
from secede.erasure.types import check_name
from secede.errors import ConfigError

PrivateKey = CryptoSigner
PublicKey = SSlibKey

_LIMIT = 4096  # bytes of a key's file; an Ed25519 key takes about 120
_MOST = 100_000  # keys of a keyring


def generate_key_pair(folder: Path, name: str, *, public: Path | None = None) -> tuple[Path, Path]:
    """Write a new pair of keys and return where they are; one that exists is never replaced.

    `public` is the folder of the public one, where it is another.
    """
    check_name(name)
    private, shown = folder / f"{name}.key", (public or folder) / f"{name}.pub"
    for path in (private, shown):
        if os.path.lexists(path):
            raise ConfigError(f"{path} exists and is not replaced: move it away or take a new name")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        files.create(private, secret, 0o600)
        files.create(shown, _public_pem(key), 0o644)
    except FileExistsError as error:  # somebody else was faster
        raise ConfigError(
            f"{error.filename2} exists and is not replaced: take a new name"
        ) from None
    return private, shown


def ensure_key_pair(folder: Path, name: str, *, public: Path | None = None) -> tuple[Path, Path]:
    """Return where a pair of keys is: made if there is none, the public one derived if it is lost.

    A private key is never replaced: whatever was signed with it would count for nothing.
    """
    private, shown = folder / f"{name}.key", (public or folder) / f"{name}.pub"
    if not private.exists() and not shown.exists():
        return generate_key_pair(folder, name, public=public)
    if private.exists() and not shown.exists():
        files.create(shown, _public_pem(_ed25519(private)), 0o644)
    return private, shown


def load_private(path: Path) -> PrivateKey:
    """Read a private key that nobody but its owner can read; links are followed and checked."""
    return CryptoSigner(_ed25519(path))


def _ed25519(path: Path) -> Ed25519PrivateKey:
    pem = _read(path, private=True)
    if b"-----BEGIN PUBLIC KEY-----" in pem:
        raise _is_public(path)
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{path} is not an unencrypted Ed25519 private key in PEM: make one with secede keygen"
        )
    return key


def _public_pem(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def load_public(path: Path) -> PublicKey:
    """Read a public key."""
    try:
        key = load_pem_public_key(_read(path, private=False))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} is not an Ed25519 public key in PEM: expected a file NAME.pub")
    return SSlibKey.from_crypto(key)


def key_id(public: PublicKey) -> str:
    """Return the 64 hexadecimal digits that stand for a public key in signatures."""
    return public.keyid


@dataclass(frozen=True)
class Keyring(Mapping[str, PublicKey]):
    """Client names and their public keys; no two clients share a key."""

    keys_by_name: Mapping[str, PublicKey]

    def __post_init__(self) -> None:
        owners: dict[str, str] = {}
        for name, key in self.keys_by_name.items():
            check_name(name)
            other = owners.setdefault(key_id(key), name)
            if other != name:
                raise ConfigError(
                    f"{other!r} and {name!r} have the same public key: each needs its own"
                )

    @classmethod
    def load(cls, folder: Path) -> Keyring:
        """Read every NAME.pub of a folder."""
        try:
            names = [name for name in os.listdir(folder) if name.endswith(".pub")]
        except OSError as error:
            raise ConfigError(f"cannot read the keys in {folder}: {error.strerror}") from error
        if len(names) > _MOST:
            raise ConfigError(f"{folder} holds {len(names):,} keys, at most {_MOST:,} are read")
        return cls({name[:-4]: load_public(folder / name) for name in sorted(names)})

    def __getitem__(self, name: str) -> PublicKey:
        """Return the key of `name`."""
        return self.keys_by_name[name]

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self.keys_by_name)

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self.keys_by_name)


def _is_public(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is a public key, expected the private one of the pair: {path.stem}.key"
    )


def _read(path: Path, *, private: bool) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not hang us
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{path} is not a regular file, expected a key in PEM")
            mode = stat.S_IMODE(found.st_mode)
            if private and mode & 0o177:
                if b"-----BEGIN PUBLIC KEY-----" in file.read(_LIMIT):
                    raise _is_public(path)
                raise ConfigError(
                    f"{path} has permissions {mode:04o}, expected 0600 or less, so that only its "
                    f"owner can read it: chmod 600 {path}; if others could read it, make a new key"
                )
            data = file.read(_LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror}") from error
    if len(data) > _LIMIT:
        raise ConfigError(f"{path} is too long for a key: more than {_LIMIT} bytes")
    return data


AUDITORS = "auditors"


@dataclass(frozen=True)
class Signers:
    """The public keys of server and clients, and those of auditors."""

    keys: Keyring
    auditors: Keyring = field(default_factory=lambda: Keyring({}))

    def __post_init__(self) -> None:
        both = self.keys.keys() & self.auditors.keys()
        if both:
            raise ConfigError(f"{min(both)!r} is a client or the server, not an auditor: rename it")
        Keyring({**self.keys, **self.auditors})  # no key has two names

    @classmethod
    def load(cls, folder: Path, further: Iterable[Path] = ()) -> Signers:
        """Read a folder of keys, its auditors, and single files NAME.pub of more auditors."""
        auditors = dict(Keyring.load(folder / AUDITORS)) if (folder / AUDITORS).is_dir() else {}
        for path in further:
            if path.suffix != ".pub" or path.stem in auditors:
                raise ConfigError(f"{path} cannot be used: expected the NAME.pub of a new auditor")
            auditors[path.stem] = load_public(path)
        return cls(Keyring.load(folder), Keyring(auditors))
