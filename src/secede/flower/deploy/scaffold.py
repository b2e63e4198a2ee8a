"""Writes a new project folder, completely or not at all: app, scripts, certificates and keys.

There is a private certificate authority, the server's certificate, a key pair for each node that
has not made its own, and the home with the key pair that signs receipts and that requests name.
TLS keys are ECDSA P-256 in PEM. Node keys are ECDSA P-384 in OpenSSH's format, which a SuperNode
reads. Private keys are readable by their owner alone, and no file is ever replaced.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secede import files
from secede.erasure import Home
from secede.errors import ConfigError, StorageError
from secede.flower.deploy import processes
from secede.flower.deploy.project import CONNECTION, Project, address_of, check_host

LOOPBACK = ("127.0.0.1", "localhost")
AUTHORITY_DAYS, SERVER_DAYS = 3650, 820
_MAX_KEY_BYTES = 4096  # of a public key; one takes about 250
_EARLIER = timedelta(hours=1)  # the clocks of other machines may be slow
_TEMPLATES = Path(__file__).parent / "templates"
APP = _TEMPLATES / "app"  # the one copy of the example app


def write_project(
    folder: Path,
    *,
    sites: Sequence[str],
    hosts: Sequence[str] = (),
    listen: str = "127.0.0.1",
    port: int | None = None,
    site_keys: Mapping[str, Path] | None = None,
) -> Project:
    """Write a project; `hosts` are further names of the server, the first of them for the sites.

    `site_keys` are public keys of sites that made their own: their private ones stay with them.
    """
    folder = folder.absolute()
    own_keys = _read_site_keys(site_keys or {}, sites)
    for host in hosts:
        check_host(host)
    project = Project(
        folder=folder,
        listen=listen,
        address=hosts[0] if hosts else "127.0.0.1",
        port=port or processes.free_port(),
        sites=tuple(sites),
    ).checked()
    named = tuple(dict.fromkeys((*hosts, *LOOPBACK)))
    if os.path.lexists(folder) and not _is_empty(folder):
        raise ConfigError(f"{folder} exists and is not empty: choose another folder")
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        part.mkdir(parents=True, mode=0o700)
        _fill(part, project, named, own_keys)
        os.rename(part, folder)
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return project


def parse_site_keys(texts: Sequence[str]) -> dict[str, Path]:
    """Read NAME=FILE.pub, each name once."""
    keys = dict[str, Path]()
    for text in texts:
        name, _, path = text.partition("=")
        if not path or name in keys:
            raise ConfigError(f"--site-key {text!r} cannot be used: give NAME=FILE.pub, each once")
        keys[name] = Path(path)
    return keys


def _read_site_keys(paths: Mapping[str, Path], sites: Sequence[str]) -> dict[str, bytes]:
    """Return each public key as it is registered; ConfigError if it is none or somebody else's."""
    keys = dict[str, bytes]()
    for name, path in paths.items():
        if name not in sites:
            raise ConfigError(f"no site {name!r} for {path}: expected one of {', '.join(sites)}")
        try:
            key = load_ssh_public_key(files.read_limited(path, _MAX_KEY_BYTES))
        except OSError as error:
            raise ConfigError(f"cannot read the key {path}: {error.strerror}") from error
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
            raise ConfigError(
                f"{path} is not an ECDSA P-384 public key in OpenSSH's format: {name} makes one "
                f"with ssh-keygen -t ecdsa -b 384 -N '' -f {name}, and gives you {name}.pub alone"
            )
        public = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        if public in keys.values():
            raise ConfigError(f"{path} is another site's key, too: each needs its own")
        keys[name] = public
    return keys


def _fill(
    part: Path, project: Project, hosts: Sequence[str], own_keys: Mapping[str, bytes]
) -> None:
    write_certificates(part / "certificates", hosts)
    for site in project.sites:
        if site in own_keys:
            _write_public(part / "nodes", site, own_keys[site])
        else:
            write_node_key(part / "nodes", site)
        (part / "sites" / site).mkdir(parents=True, mode=0o700)
    unwanted = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(APP, part / "app", ignore=unwanted)
    changes = {
        "@SITES@": str(len(project.sites)),
        "@CONNECTION@": CONNECTION,
        "@LISTEN@": project.listen,
        "@HOSTS@": ", ".join(hosts),
    }
    for template in sorted(path for path in _TEMPLATES.iterdir() if path.is_file()):
        text = template.read_text(encoding="utf-8")
        for old, new in changes.items():
            text = text.replace(old, new)
        files.write_text(part / template.name, text)
        if template.suffix == ".sh":
            (part / template.name).chmod(0o755)
    with files.private():  # so that requests can name the key, and sites pin it, from the start
        Home(part / "home").make_server_key()
    files.write_text(part / ".gitignore", "*.key\n/flower/\n/home/\n/logs/\n/sites/\n/state/\n")
    project.write(part)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


def write_certificates(folder: Path, hosts: Sequence[str], now: datetime | None = None) -> None:
    """Write ca.crt, ca.key, server.crt and server.key; the server's certificate names `hosts`."""
    now = now or datetime.now(UTC)
    authority = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("secede private authority")
    root = (
        _certificate(issuer, issuer, authority.public_key(), authority, AUTHORITY_DAYS, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority, SHA256())
    )
    names = [x509.IPAddress(a) if (a := address_of(h)) else x509.DNSName(h) for h in hosts]
    served = (
        _certificate(_name(hosts[0]), issuer, key.public_key(), authority, SERVER_DAYS, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority, SHA256())
    )
    files.create(folder / "ca.key", _secret(authority, PrivateFormat.PKCS8), 0o600)
    files.create(folder / "ca.crt", root.public_bytes(Encoding.PEM), 0o644)
    files.create(folder / "server.key", _secret(key, PrivateFormat.PKCS8), 0o600)
    files.create(folder / "server.crt", served.public_bytes(Encoding.PEM), 0o644)


def write_node_key(folder: Path, name: str) -> None:
    """Write NAME.key and NAME.pub, by which the SuperLink identifies a node."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    files.create(folder / f"{name}.key", _secret(key, PrivateFormat.OpenSSH), 0o600)
    _write_public(folder, name, public)


def _write_public(folder: Path, name: str, public: bytes) -> None:
    files.create(folder / f"{name}.pub", public + f" {name}\n".encode(), 0o644)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    authority: ec.EllipticCurvePrivateKey,
    days: int,
    now: datetime,
) -> x509.CertificateBuilder:
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(signer, critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _secret(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])
