from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from secede.canaries import (
    SealContext,
    generate_seal_keys,
    load_seal_private_key,
    load_seal_public_key,
    open_sealed,
    seal,
)
from secede.errors import ConfigError, TrustError

KEY = X25519PrivateKey.generate()
CONTEXT = SealContext(federation="hospitals", client="site-1", commitment="ab" * 32)
SECRET = b"canaries" * 100


def test_the_owner_of_the_key_opens_what_was_sealed() -> None:
    sealed = seal(SECRET, KEY.public_key(), CONTEXT)
    assert open_sealed(sealed, KEY, CONTEXT) == SECRET
    assert b"canariescanaries" not in sealed
    assert seal(SECRET, KEY.public_key(), CONTEXT) != sealed


def test_another_key_federation_client_or_commitment_does_not_open_it() -> None:
    sealed = seal(SECRET, KEY.public_key(), CONTEXT)
    with pytest.raises(TrustError, match="do not open"):
        open_sealed(sealed, X25519PrivateKey.generate(), CONTEXT)
    for name in ("federation", "client", "commitment"):
        with pytest.raises(TrustError, match="do not open"):
            open_sealed(sealed, KEY, replace(CONTEXT, **{name: "other"}))


def test_an_altered_byte_is_refused_wherever_it_is() -> None:
    sealed = seal(b"short", KEY.public_key(), CONTEXT)
    for place in range(len(sealed)):
        altered = bytearray(sealed)
        altered[place] ^= 0x20
        with pytest.raises(TrustError) as caught:
            open_sealed(bytes(altered), KEY, CONTEXT)
        assert "\n" not in str(caught.value)
    for end in (0, 10, 30, len(sealed) - 1):
        with pytest.raises(TrustError):
            open_sealed(sealed[:end], KEY, CONTEXT)


def test_a_key_of_small_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be sealed for"):
        seal(SECRET, X25519PublicKey.from_public_bytes(bytes(32)), CONTEXT)


def test_a_pair_of_keys_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    private, public = tmp_path / "auditor.seal.key", tmp_path / "auditor.seal.pub"
    generate_seal_keys(private, public)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    sealed = seal(SECRET, load_seal_public_key(public), CONTEXT)
    assert open_sealed(sealed, load_seal_private_key(private), CONTEXT) == SECRET
    with pytest.raises(ConfigError, match="not replaced"):
        generate_seal_keys(private, public)


def test_keys_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    private, public = tmp_path / "a.key", tmp_path / "a.pub"
    generate_seal_keys(private, public)
    with pytest.raises(ConfigError, match="not an X25519 public key"):
        load_seal_public_key(private)
    private.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_seal_private_key(private)
    public.chmod(0o600)
    with pytest.raises(ConfigError, match="X25519 private key"):
        load_seal_private_key(public)
    with pytest.raises(ConfigError, match="cannot read"):
        load_seal_public_key(tmp_path / "missing.pub")
    (tmp_path / "long.pub").write_bytes(bytes(5000))
    with pytest.raises(ConfigError, match="too long"):
        load_seal_public_key(tmp_path / "long.pub")
    signing = Ed25519PrivateKey.generate()
    pem = signing.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "signing.key").write_bytes(pem)
    (tmp_path / "signing.key").chmod(0o600)
    with pytest.raises(ConfigError, match="X25519 private key"):
        load_seal_private_key(tmp_path / "signing.key")
    pem = signing.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "signing.pub").write_bytes(pem)
    with pytest.raises(ConfigError, match="X25519 public key"):
        load_seal_public_key(tmp_path / "signing.pub")
