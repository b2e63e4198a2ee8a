"""Seal a client's canaries for an auditor: only the owner of the auditor's private key reads them.

HPKE (RFC 9180) in base mode with X25519, HKDF-SHA256 and ChaCha20-Poly1305. The federation, the
client and the commitment to the canaries are bound to what is sealed: it opens for these alone.
It does not show who sealed it; the commitment does.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from secede import files
from secede.canaries.secret_file import MAX_FILE_BYTES
from secede.errors import ConfigError, TrustError

_MAGIC = b"secede-sealed-canaries-v1\n"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_OVERHEAD = 32 + 16  # the ephemeral key and the tag
_MAX_KEY_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class SealContext:
    """What sealed canaries belong to; whoever opens them must name the same."""

    federation: str
    client: str
    commitment: str  # the hexadecimal root of the commitment to the canaries

    def to_bytes(self) -> bytes:
        """Return the context in its one form."""
        return _MAGIC + json.dumps(asdict(self), sort_keys=True).encode()


def seal(secret: bytes, public_key: X25519PublicKey, context: SealContext) -> bytes:
    """Return `secret`, a file of canaries, for the owner of `public_key` alone."""
    if len(secret) > MAX_FILE_BYTES:
        raise ConfigError(f"{len(secret):,} bytes to seal, the limit is {MAX_FILE_BYTES:,}")
    try:
        return _MAGIC + _SUITE.encrypt(secret, public_key, context.to_bytes())
    except ValueError as error:  # a point of small order
        raise ConfigError("the auditor's public key cannot be sealed for") from error


def open_sealed(sealed: bytes, private_key: X25519PrivateKey, context: SealContext) -> bytes:
    """Return what was sealed for this key and context, or raise TrustError."""
    if not sealed.startswith(_MAGIC) or len(sealed) > MAX_FILE_BYTES + len(_MAGIC) + _OVERHEAD:
        raise TrustError("these are no sealed canaries: expected a file that `seal` wrote")
    try:
        return _SUITE.decrypt(sealed[len(_MAGIC) :], private_key, context.to_bytes())
    except (InvalidTag, ValueError) as error:
        raise TrustError(
            "the sealed canaries do not open: another key, another federation, client or "
            "commitment, or an altered file"
        ) from error


def generate_seal_keys(private: Path, public: Path) -> None:
    """Write a new pair of keys, the private one with mode 0600; no file is replaced."""
    key = X25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shared = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for path in (private, public):
        if os.path.lexists(path):
            raise ConfigError(f"{path} exists and is not replaced: move it away or take a new name")
    try:
        files.create(private, pem, 0o600)
        files.create(public, shared, 0o644)
    except FileExistsError as error:  # another process was faster
        raise ConfigError(
            f"{error.filename2} exists and is not replaced: take a new name"
        ) from None


def load_seal_public_key(path: Path) -> X25519PublicKey:
    """Read an auditor's public key."""
    try:
        key = load_pem_public_key(_read(path, private=False))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, X25519PublicKey):
        raise ConfigError(f"{path} is not an X25519 public key in PEM")
    return key


def load_seal_private_key(path: Path) -> X25519PrivateKey:
    """Read an auditor's private key; ConfigError if others than its owner may read the file."""
    try:
        key = load_pem_private_key(_read(path, private=True), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, X25519PrivateKey):
        raise ConfigError(f"{path} is not an unencrypted X25519 private key in PEM")
    return key


def _read(path: Path, *, private: bool) -> bytes:
    try:
        with files.open_regular(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if private and mode & 0o177:
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
