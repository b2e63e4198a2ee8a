"""Ed25519 keys as PEM files: NAME.key, which only its owner may read, and NAME.pub for everybody.

A private key is checked on the opened file, so that a symbolic link or a swapped file cannot slip
past the check. No error holds anything of a key.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
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
SERVER = "server"  # the name of the server's keys
AUDITORS = "auditors"  # the folder of auditors' public keys, among those of server and clients
_MAX_KEY_BYTES = 4096  # of a file; an Ed25519 key takes about 120
_MAX_KEYS = 100_000  # of a keyring
_PUBLIC_PEM = b"-----BEGIN PUBLIC KEY-----"
# The y of the points whose order divides 8. A signature without a private key holds for such keys.
_PRIME = 2**255 - 19
_SMALL_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER = {0, 1, _PRIME - 1, _SMALL_ORDER_8, _PRIME - _SMALL_ORDER_8}


class Keyring(dict[str, PublicKey]):
    """Public keys by name; no two names share a key."""

    def __init__(self, keys: Mapping[str, PublicKey]) -> None:
        super().__init__(keys)
        owners: dict[str, str] = {}
        for name, key in keys.items():
            check_name(name)
            owner = owners.setdefault(key.keyid, name)
            if owner != name:
                raise ConfigError(
                    f"{owner!r} and {name!r} have the same public key: each needs its own"
                )

    @classmethod
    def load(cls, folder: Path) -> Keyring:
        """Read every NAME.pub in a folder."""
        try:
            names = [name for name in os.listdir(folder) if name.endswith(".pub")]
        except OSError as error:
            raise ConfigError(f"cannot read the keys in {folder}: {error.strerror}") from error
        if len(names) > _MAX_KEYS:
            raise ConfigError(f"{folder} holds {len(names):,} keys, the limit is {_MAX_KEYS:,}")
        return cls({name[:-4]: load_public_key(folder / name) for name in sorted(names)})


@dataclass(frozen=True)
class Signers:
    """The public keys that count on a receipt: of the server, of clients and of auditors."""

    keys: Keyring
    auditors: Keyring = field(default_factory=lambda: Keyring({}))

    def __post_init__(self) -> None:
        both = self.keys.keys() & self.auditors.keys()
        if both:
            raise ConfigError(f"{min(both)!r} is a client or the server, not an auditor: rename it")
        Keyring({**self.keys, **self.auditors})  # no key has two names

    @classmethod
    def load(cls, folder: Path, more_auditors: Iterable[Path] = ()) -> Signers:
        """Read a folder of keys, the auditors' folder in it, and more auditors' files NAME.pub."""
        auditors = dict(Keyring.load(folder / AUDITORS)) if (folder / AUDITORS).is_dir() else {}
        for path in more_auditors:
            if path.suffix != ".pub" or path.stem in auditors:
                raise ConfigError(f"{path} cannot be used: expected the NAME.pub of a new auditor")
            auditors[path.stem] = load_public_key(path)
        return cls(Keyring.load(folder), Keyring(auditors))


def generate_key_pair(
    folder: Path, name: str, *, public_folder: Path | None = None
) -> tuple[Path, Path]:
    """Write a new key pair and return the paths of its private and public key.

    A key that exists is never replaced.
    """
    check_name(name)
    private, public = _pair_paths(folder, name, public_folder)
    for path in (private, public):
        if os.path.lexists(path):
            raise ConfigError(f"{path} exists and is not replaced: move it away or take a new name")
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        files.create(private, pem, 0o600)
        files.create(public, _public_pem(key), 0o644)
    except FileExistsError as error:  # another process was faster
        raise ConfigError(
            f"{error.filename2} exists and is not replaced: take a new name"
        ) from None
    return private, public


def ensure_key_pair(
    folder: Path, name: str, *, public_folder: Path | None = None
) -> tuple[Path, Path]:
    """Return the paths of a key pair; generate it if missing, and derive a lost public key.

    A private key is never replaced: what was signed with it would count for nothing.
    """
    private, public = _pair_paths(folder, name, public_folder)
    if not private.exists() and not public.exists():
        return generate_key_pair(folder, name, public_folder=public_folder)
    if private.exists() and not public.exists():
        files.create(public, _public_pem(_load_ed25519(private)), 0o644)
    return private, public


def load_private_key(path: Path) -> PrivateKey:
    """Read a private key; ConfigError if others than its owner may read the file."""
    return CryptoSigner(_load_ed25519(path))


def load_public_key(path: Path) -> PublicKey:
    """Read a public key."""
    return parse_public_key(_read(path, private=False), str(path))


def parse_public_key(pem: bytes, source: str) -> PublicKey:
    """Return the public key in PEM that came from `source`."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{source} is not an Ed25519 public key in PEM: expected a file NAME.pub")
    y = int.from_bytes(key.public_bytes_raw(), "little") % 2**255  # the last bit is x's sign
    if y >= _PRIME or y in _SMALL_ORDER:
        raise ConfigError(
            f"{source} is a point of small order or not in its one encoding: anybody could sign "
            "for such a key; make a pair with secede keygen"
        )
    return SSlibKey.from_crypto(key)


def _pair_paths(folder: Path, name: str, public_folder: Path | None) -> tuple[Path, Path]:
    return folder / f"{name}.key", (public_folder or folder) / f"{name}.pub"


def _public_pem(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _load_ed25519(path: Path) -> Ed25519PrivateKey:
    pem = _read(path, private=True)
    if _PUBLIC_PEM in pem:
        raise _not_private(path)
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{path} is not an unencrypted Ed25519 private key in PEM: make one with secede keygen"
        )
    return key


def _read(path: Path, *, private: bool) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not hang us
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path} is not a regular file, expected a key in PEM")
            mode = stat.S_IMODE(status.st_mode)
            if private and mode & 0o177:
                if _PUBLIC_PEM in file.read(_MAX_KEY_BYTES):
                    raise _not_private(path)
                raise ConfigError(
                    f"{path} has permissions {mode:04o}, expected 0600 or less, so that only its "
                    f"owner can read it: chmod 600 {path}; if others could read it, make a new key"
                )
            data = file.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror}") from error
    if len(data) > _MAX_KEY_BYTES:
        raise ConfigError(f"{path} is too long for a key: more than {_MAX_KEY_BYTES} bytes")
    return data


def _not_private(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is a public key, expected the private one of the pair: {path.stem}.key"
    )
